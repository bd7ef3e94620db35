"""Timelines of a data directory: creation in two steps, deletion for good, no lost promises."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from new_timeline import SERVER, TIMELINE, first_membership
from timeline_on_disk import HOOKS, Pusher, raising
from wal_log import START_LSN

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Member, Stamp
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.data_directory import DataDirectory, folder_name
from quorum_wal.safekeeper.errors import DataDirError, TimelineError
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import Timelines
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

MEMBERS = first_membership(1, 2, 3)
IDENTITY = b'{"format": 2, "safekeeper_id": 1, "instance": "%s"}'
OTHER = TimelineId(b"other tenant".ljust(16), b"other timeline".ljust(16))


@contextmanager
def opened(path: Path, safekeeper_id: int = 1) -> Iterator[Timelines]:
    """Timelines as between a start and an orderly end of the process."""
    directory = DataDirectory(path, safekeeper_id)
    timelines = Timelines(directory, HOOKS)
    try:
        yield timelines
    finally:
        timelines.close()
        directory.close()


def create(timelines: Timelines, timeline: TimelineId = TIMELINE, **changes: Any) -> None:
    facts: dict[str, Any] = {
        "server": SERVER,
        "membership": MEMBERS,
        "start_lsn": START_LSN,
        "history": TimelineHistory(1),
    }
    timelines.create(timeline, **(facts | changes))


def folder_of(path: Path, timeline: TimelineId = TIMELINE) -> Path:
    return path / "timelines" / folder_name(timeline)


# ---- creation


def test_created_activated_and_there_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
        assert timelines.get(TIMELINE).state is TimelineState.CREATING
        timelines.activate(TIMELINE)
    with opened(tmp_path) as timelines:
        timeline = timelines.get(TIMELINE)
        assert timeline.state is TimelineState.ACTIVE
        assert timeline.positions.flush_lsn == START_LSN
        assert timeline.control.term_history.entries[0].start_lsn == START_LSN


def test_creating_again_with_equal_facts_is_fine_and_changes_nothing(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
        timelines.activate(TIMELINE)
        pusher = Pusher(timelines.get(TIMELINE)).lead()
        pusher.log.append("R1")
        pusher.push()
        create(timelines)
        assert timelines.get(TIMELINE).positions.flush_lsn == pusher.log.lsn
        assert timelines.get(TIMELINE).control.promised == pusher.node_id


@pytest.mark.parametrize(
    "changes",
    [
        {"server": replace(SERVER, system_id=9)},
        {"membership": first_membership(1, 2)},
        {"start_lsn": 2 * START_LSN},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_creating_again_with_other_facts_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
        with pytest.raises(TimelineError, match="created with other parameters") as caught:
            create(timelines, **changes)
        assert caught.value.sqlstate == "42710"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"start_lsn": 0}, "start 0 is not a segment's start"),
        ({"start_lsn": START_LSN + 8}, "start 100008 is not a segment's start"),
        ({"membership": first_membership(2, 3)}, "safekeeper 1 is not one of the members"),
        (
            {"membership": MEMBERS.stamped(Stamp(NodeId.ZERO, 2))},
            "not the first one of a new timeline",
        ),
        (
            {"membership": replace(MEMBERS, roster=(Member(1, b"another!"),))},
            "the membership says 616e6f7468657221",
        ),
        ({"server": replace(SERVER, wal_seg_size=1000)}, "segment size 1000"),
        ({"server": replace(SERVER, pg_version=90600)}, "9"),
    ],
    ids=[
        "no start",
        "inside a segment",
        "not a member",
        "a later one",
        "another disk",
        "segment size",
        "Postgres 9.6",
    ],
)
def test_impossible_facts_are_refused(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with opened(tmp_path) as timelines:
        with pytest.raises((TimelineError, WalError), match=problem):
            create(timelines, **changes)
        assert timelines.all() == []
        assert list((tmp_path / "timelines").iterdir()) == []


def test_an_unknown_timeline_is_named(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines, pytest.raises(TimelineError, match="no such") as caught:
        timelines.get(TIMELINE)
    assert caught.value.sqlstate == "42704"
    assert "lost its data" in caught.value.hint


DURABLE_CALLS = ("make_directory", "replace_file", "publish_file", "sync_directory")


@pytest.mark.parametrize("steps", range(8))
def test_an_interrupted_creation_leaves_all_of_it_or_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The process dies after the first `steps` steps on the disk; the next start cleans up."""
    with opened(tmp_path) as timelines, monkeypatch.context() as patch:
        left = [steps]
        for name in DURABLE_CALLS:
            real = getattr(durable, name)

            def counted(*args: Any, real: Any = real) -> None:
                if left[0] == 0:
                    raise KeyboardInterrupt
                left[0] -= 1
                real(*args)

            patch.setattr(durable, name, counted)
        try:
            create(timelines)
            finished = True
        except KeyboardInterrupt:
            finished = False
    with opened(tmp_path) as timelines:
        names = {entry.name for entry in (tmp_path / "timelines").iterdir()}
        assert names <= {folder_name(TIMELINE)}
        assert not timelines.damaged
        exists = bool(timelines.all())
        assert exists or not finished
        create(timelines)
        timelines.activate(TIMELINE)
        assert Pusher(timelines.get(TIMELINE)).lead()


def test_a_creation_that_failed_can_be_repeated_in_the_same_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as timelines:
        with monkeypatch.context() as full:
            full.setattr(os, "pwrite", raising(OSError(28, "No space left on device")))
            with pytest.raises(StorageError):
                create(timelines)
        assert timelines.all() == []
        create(timelines)
        assert timelines.get(TIMELINE).state is TimelineState.CREATING


# ---- deletion


def test_a_deleted_timeline_never_exists_again(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
        create(timelines, OTHER)
        timelines.delete(TIMELINE)
        assert [t.control.timeline for t in timelines.all()] == [OTHER]
    with opened(tmp_path) as timelines:
        with pytest.raises(TimelineError, match="no such timeline"):
            timelines.get(TIMELINE)
        with pytest.raises(TimelineError, match="its name is never used again"):
            create(timelines)
        assert timelines.get(OTHER)
    assert not folder_of(tmp_path).exists()


def test_a_deletion_disconnects_the_proposer(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
        timelines.activate(TIMELINE)
        pusher = Pusher(timelines.get(TIMELINE)).lead()
        timelines.delete(TIMELINE)
        assert pusher.closed_reason == "it was deleted"
        pusher.log.append("R1")
        with pytest.raises(TimelineError, match="it was deleted"):
            pusher.push()
        pusher.timeline.disconnect(pusher)


def test_an_interrupted_deletion_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tombstone is written first: from then on the timeline does not exist."""
    with opened(tmp_path) as timelines:
        create(timelines)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", raising(OSError(5, "Input/output error")))
            with pytest.raises(StorageError):
                timelines.delete(TIMELINE)
        assert folder_of(tmp_path).exists()
    with opened(tmp_path) as timelines:
        assert timelines.all() == []
        assert not folder_of(tmp_path).exists()
        with pytest.raises(TimelineError, match="never used again"):
            create(timelines)


def test_deleting_a_missing_timeline_is_refused_and_leaves_no_tombstone(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        with pytest.raises(TimelineError, match="no such timeline"):
            timelines.delete(TIMELINE)
        create(timelines)


# ---- amnesia


@pytest.mark.parametrize("lost", ["the control file", "everything in its folder"])
def test_amnesia_a_member_that_lost_its_promises_does_not_begin_again(
    tmp_path: Path, lost: str
) -> None:
    """It could vote a second time, and committed WAL could be lost."""
    with opened(tmp_path) as timelines:
        create(timelines)
        create(timelines, OTHER)
    if lost == "the control file":
        (folder_of(tmp_path) / "control").unlink()
    else:
        shutil.rmtree(folder_of(tmp_path))
        folder_of(tmp_path).mkdir()
    with opened(tmp_path) as timelines:
        for refused in (lambda: timelines.get(TIMELINE), lambda: create(timelines)):
            with pytest.raises(TimelineError, match=r"control file .* does not exist") as caught:
                refused()
            assert caught.value.sqlstate == "XX001"
            assert "new one with another id" in str(caught.value)
        assert timelines.get(OTHER).state is TimelineState.CREATING, "the others are served"
        assert not (folder_of(tmp_path) / "control").exists()


@pytest.mark.parametrize("how", ["flipped", "cut", "empty"])
def test_a_damaged_control_file_is_refused_and_never_reset(tmp_path: Path, how: str) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
    path = folder_of(tmp_path) / "control"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    damaged = {"flipped": bytes(content), "cut": bytes(content[:-1]), "empty": b""}[how]
    path.write_bytes(damaged)
    with opened(tmp_path) as timelines:
        for refused in (lambda: timelines.get(TIMELINE), lambda: create(timelines)):
            with pytest.raises(TimelineError, match="control file") as caught:
                refused()
            assert "Restore the file" in str(caught.value)
    assert path.read_bytes() == damaged


def test_a_damaged_timeline_can_be_deleted(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
    (folder_of(tmp_path) / "control").unlink()
    with opened(tmp_path) as timelines:
        timelines.delete(TIMELINE)
        with pytest.raises(TimelineError, match="no such timeline"):
            timelines.get(TIMELINE)
        with pytest.raises(TimelineError, match="never used again"):
            create(timelines)


# ---- the data directory


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(DataDirError, match="in use by another process"):
        DataDirectory(tmp_path, 1)
    with opened(tmp_path):
        pass  # free again


def test_it_belongs_to_one_safekeeper(tmp_path: Path) -> None:
    """Another member with these promises could vote twice."""
    with opened(tmp_path, safekeeper_id=1):
        pass  # only created
    with pytest.raises(DataDirError, match="belongs to safekeeper 1, not 2"):
        DataDirectory(tmp_path, 2)


def test_a_folder_of_something_else_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "PG_VERSION").write_text("16\n")
    with pytest.raises(DataDirError, match="neither empty nor a safekeeper's data directory"):
        DataDirectory(tmp_path, 1)


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b'{"format": 1}', b'{"format": 9, "safekeeper_id": 1}'),
        *(b'{"format": 2, "safekeeper_id": 1}', IDENTITY % b"0011", IDENTITY % b"001122334455667g"),
    ],
)
def test_a_damaged_identity_is_refused(tmp_path: Path, content: bytes) -> None:
    with opened(tmp_path):
        pass  # only created
    (tmp_path / "safekeeper.json").write_bytes(content)
    with pytest.raises(DataDirError, match=r"could not read|has format 9, expected 2"):
        DataDirectory(tmp_path, 1)
    assert (tmp_path / "safekeeper.json").read_bytes() == content


def test_the_instance_is_drawn_once(tmp_path: Path) -> None:
    with opened(tmp_path / "a") as timelines:
        instance = timelines.data_directory.instance
    with opened(tmp_path / "a") as timelines:
        assert timelines.data_directory.instance == instance
    with opened(tmp_path / "b") as timelines:
        assert timelines.data_directory.instance != instance, "another disk"


def test_a_directory_of_an_older_release_gets_its_instance_and_keeps_it(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
    (tmp_path / "safekeeper.json").write_bytes(b'{"format": 1, "safekeeper_id": 1}')
    with opened(tmp_path) as timelines:
        instance = timelines.data_directory.instance
        assert timelines.get(TIMELINE).instance == instance
    assert json.loads((tmp_path / "safekeeper.json").read_text()) == {
        "format": 2, "safekeeper_id": 1, "instance": instance.hex()
    }  # fmt: skip
    with opened(tmp_path) as timelines:
        assert timelines.data_directory.instance == instance


def test_foreign_files_among_the_timelines_are_not_touched(tmp_path: Path) -> None:
    with opened(tmp_path) as timelines:
        create(timelines)
    stranger = tmp_path / "timelines" / "lost+found"
    stranger.mkdir()
    with opened(tmp_path) as timelines:
        assert len(timelines.all()) == 1
        assert not timelines.damaged
    assert stranger.exists()
