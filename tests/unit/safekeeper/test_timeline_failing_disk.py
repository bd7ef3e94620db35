"""A disk that fails under a timeline: it stops at once, trusts nothing, and retries no fsync."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog
from acceptor_steps import A
from timeline_on_disk import Pusher, leading_pusher, load_timeline, raising, state_of
from wal_log import WAL_SEG_SIZE

from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.safekeeper.join_rules import activated
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.storage.errors import StorageError

EIO = OSError(errno.EIO, "Input/output error")
ENOSPC = OSError(errno.ENOSPC, "No space left on device")
EDQUOT = OSError(errno.EDQUOT, "Disk quota exceeded")


class FailingCall:
    """Replaces a function of `os`: counts calls, and fails from now on."""

    def __init__(self, patch: pytest.MonkeyPatch, name: str, error: OSError) -> None:
        self.calls = 0
        self._error = error
        patch.setattr(os, name, self)

    def __call__(self, *_: object) -> int:
        self.calls += 1
        raise self._error


def with_one_record(folder: Path) -> Pusher:
    pusher = leading_pusher(folder)
    pusher.log.append("R1")
    pusher.push()
    return pusher


def check_stopped(pusher: Pusher, reason: str) -> None:
    """Every later command is refused with the reason, and the connection was closed."""
    timeline = pusher.timeline
    assert timeline.state is TimelineState.STOPPED
    assert reason in timeline.stopped_reason
    assert reason in pusher.closed_reason
    commands: list[Callable[[], object]] = [
        pusher.vote,
        pusher.push,
        lambda: timeline.connect(pusher),
        lambda: timeline.amend(activated, "it was activated"),
    ]
    for command in commands:
        with pytest.raises(TimelineError, match="is stopped: ") as caught:
            command()
        assert caught.value.sqlstate == "57P03"
        assert reason in str(caught.value)


# ---- fsync


@pytest.mark.parametrize("error", [EIO, ENOSPC, EDQUOT], ids=["EIO", "ENOSPC", "EDQUOT"])
def test_a_failed_fsync_stops_the_timeline_and_is_never_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    """The kernel may have dropped the pages and marked them clean: a second fsync that succeeds
    proves nothing. This is also so if the disk was full, as on thin or copy-on-write volumes.
    """
    pusher = with_one_record(tmp_path)
    acknowledged_lsn = pusher.log.lsn
    pusher.log.append("R2")
    fdatasync = FailingCall(monkeypatch, "fdatasync", error)
    fsync = FailingCall(monkeypatch, "fsync", error)
    with pytest.raises(StorageError, match="could not fdatasync") as caught:
        pusher.push()
    assert caught.value.sqlstate == "58030"
    assert pusher.timeline.positions.flush_lsn == acknowledged_lsn
    check_stopped(pusher, os.strerror(error.errno or 0))
    timeline = pusher.timeline
    timeline.disconnect(pusher)
    timeline.maintain_files()
    timeline.maybe_resume(1 << 50)
    timeline.close("the process ends")
    assert (fdatasync.calls, fsync.calls) == (1, 0)
    assert timeline.state is TimelineState.STOPPED


def test_a_failed_fsync_of_a_full_segment_stops_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = with_one_record(tmp_path)
    pusher.log.append("long", WAL_SEG_SIZE)
    fdatasync = FailingCall(monkeypatch, "fdatasync", EIO)
    with pytest.raises(StorageError):
        pusher.push()
    assert fdatasync.calls == 1
    check_stopped(pusher, "Input/output error")


def test_a_promise_that_was_not_persisted_is_not_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = leading_pusher(tmp_path)
    other = Pusher(pusher.timeline, number=2, node_id=type(A)(9, b"z" * 16))
    other.timeline.connect(other)
    fsync = FailingCall(monkeypatch, "fsync", EIO)
    with pytest.raises(StorageError):
        other.vote()
    assert fsync.calls == 1
    assert other.timeline.control.promised == A
    assert load_timeline(tmp_path).control.promised == A


def test_nothing_is_answered_when_the_rename_of_the_control_file_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = leading_pusher(tmp_path)
    other = Pusher(pusher.timeline, number=2, node_id=type(A)(9, b"z" * 16))
    other.timeline.connect(other)
    FailingCall(monkeypatch, "rename", EIO)
    with pytest.raises(StorageError, match="could not rename to"):
        other.vote()
    assert other.timeline.state is TimelineState.STOPPED
    assert other.timeline.control.promised == A


# ---- a full disk


def test_the_log_has_the_whole_reason_before_another_thread_sees_the_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = with_one_record(tmp_path)
    seen = []

    def look(logger: object, name: str, event: structlog.typing.EventDict) -> str:
        seen.append((event["event"], event["reason"], pusher.timeline.state))
        raise structlog.DropEvent

    structlog.configure(processors=[look])
    pusher.log.append("R2")
    FailingCall(monkeypatch, "pwrite", ENOSPC)
    with pytest.raises(StorageError, match="could not write"):
        pusher.push()
    assert state_of(pusher.timeline) is TimelineState.STOPPED
    assert "the timeline resumes when" in pusher.timeline.stopped_reason
    assert seen == [
        ("timeline stopped", pusher.timeline.stopped_reason, TimelineState.ACTIVE),
    ]


@pytest.mark.parametrize("error", [ENOSPC, EDQUOT], ids=["ENOSPC", "EDQUOT"])
def test_a_timeline_resumes_after_a_full_disk_with_all_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    pusher = with_one_record(tmp_path)
    acknowledged_lsn = pusher.log.lsn
    pusher.log.append("R2", 50_000)
    with monkeypatch.context() as full:
        FailingCall(full, "pwrite", error)
        with pytest.raises(StorageError, match="could not write") as caught:
            pusher.push()
        assert caught.value.sqlstate == "53100"
        assert "resumes without a restart" in caught.value.hint
        check_stopped(pusher, os.strerror(error.errno or 0))
        pusher.timeline.maybe_resume(free_bytes=WAL_SEG_SIZE)
        assert state_of(pusher.timeline) is TimelineState.STOPPED, "too little space yet"
    pusher.timeline.maybe_resume(free_bytes=100 * WAL_SEG_SIZE)
    assert state_of(pusher.timeline) is TimelineState.ACTIVE
    assert pusher.timeline.stopped_reason == ""
    assert pusher.timeline.positions.flush_lsn == acknowledged_lsn
    again = Pusher(pusher.timeline, number=2, log=pusher.log).lead(acknowledged_lsn)
    assert again.push().flush_lsn == pusher.log.lsn
    assert load_timeline(tmp_path).positions.flush_lsn == pusher.log.lsn


def test_a_half_written_record_is_cut_when_there_is_space_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pwrite takes some bytes, then reports that the disk is full."""
    pusher = with_one_record(tmp_path)
    acknowledged_lsn = pusher.log.lsn
    pusher.log.append("R2", 50_000)
    pwrite = os.pwrite
    answers = iter([lambda fd, data, at: pwrite(fd, data[:20_000], at), raising(ENOSPC)])
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda *args: next(answers)(*args))
        with pytest.raises(StorageError):
            pusher.push()
    pusher.timeline.maybe_resume(free_bytes=100 * WAL_SEG_SIZE)
    assert pusher.timeline.positions.flush_lsn == acknowledged_lsn
    tail = pusher.timeline.store.read(acknowledged_lsn, WAL_SEG_SIZE)
    assert not tail.strip(b"\0")


def test_a_disk_that_is_still_full_stops_the_timeline_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = with_one_record(tmp_path)
    pusher.log.append("R2", 50_000)
    pwrite = os.pwrite
    answers = iter([lambda fd, data, at: pwrite(fd, data[:20_000], at), *[raising(ENOSPC)] * 9])
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", lambda *args: next(answers)(*args))
        with pytest.raises(StorageError):
            pusher.push()
        pusher.timeline.maybe_resume(free_bytes=100 * WAL_SEG_SIZE)
        assert state_of(pusher.timeline) is TimelineState.STOPPED
    pusher.timeline.maybe_resume(free_bytes=100 * WAL_SEG_SIZE)
    assert state_of(pusher.timeline) is TimelineState.ACTIVE


def test_a_full_disk_in_the_middle_of_a_new_segment_frees_its_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = leading_pusher(tmp_path)
    pusher.log.append("R1")
    with monkeypatch.context() as full:
        FailingCall(full, "pwrite", ENOSPC)
        with pytest.raises(StorageError):
            pusher.push()
    assert list((tmp_path / "wal").iterdir()) == []


def test_housekeeping_on_a_full_disk_is_harmless(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = with_one_record(tmp_path)
    with monkeypatch.context() as full:
        FailingCall(full, "pwrite", ENOSPC)
        with pytest.raises(StorageError):
            pusher.timeline.maintain_files()
    assert state_of(pusher.timeline) is TimelineState.ACTIVE
    pusher.log.append("R2")
    assert pusher.push().flush_lsn == pusher.log.lsn


# ---- anything else


@pytest.mark.parametrize("method", ["write", "flush"])
def test_a_bug_while_executing_stops_the_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The acceptor is ahead of the disk then: a later flush would confirm unwritten WAL."""
    pusher = with_one_record(tmp_path)
    acknowledged_lsn = pusher.log.lsn
    pusher.log.append("R2")
    with monkeypatch.context() as broken:
        broken.setattr(pusher.timeline.store, method, raising(OSError(9, "Bad file descriptor")))
        with pytest.raises(OSError, match="Bad file descriptor"):
            pusher.push()
    check_stopped(pusher, "unexpected OSError")
    pusher.timeline.disconnect(pusher)
    pusher.timeline.maybe_resume(1 << 50)
    assert state_of(pusher.timeline) is TimelineState.STOPPED
    assert pusher.timeline.positions.flush_lsn == acknowledged_lsn


def test_a_broken_assertion_of_the_acceptor_stops_the_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = with_one_record(tmp_path)
    monkeypatch.setattr(Acceptor, "step", raising(AssertionError("a law")))
    with pytest.raises(AssertionError):
        pusher.push()
    check_stopped(pusher, "a law")


def test_a_start_on_a_disk_that_cannot_be_read_is_a_stop_not_a_reset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pusher = with_one_record(tmp_path)
    pusher.timeline.close("a restart")
    with monkeypatch.context() as broken:
        FailingCall(broken, "pread", EIO)
        timeline = load_timeline(tmp_path)
    assert timeline.state is TimelineState.STOPPED
    assert "could not read" in timeline.stopped_reason
    assert load_timeline(tmp_path).positions.flush_lsn == pusher.log.lsn


def test_no_descriptor_is_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        pusher = with_one_record(folder)
        pusher.log.append("R2")
        with monkeypatch.context() as broken:
            FailingCall(broken, "fdatasync", EIO)
            with pytest.raises(StorageError):
                pusher.push()
        load_timeline(folder).close("done")
    assert len(os.listdir("/proc/self/fd")) == before
