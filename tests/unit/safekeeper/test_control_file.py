"""The control file on disk: replaced whole or not at all, and hints that never decrease."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from acceptor_steps import MEMBERS, A, C
from new_timeline import new_control_state
from timeline_on_disk import raising
from wal_log import START_LSN

from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME, ControlFile, Hints
from quorum_wal.safekeeper.control_state import encode_control_state
from quorum_wal.safekeeper.errors import ControlFileError
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError

STATE = new_control_state(MEMBERS)
TIMEOUT = 10.0


@pytest.fixture
def control(tmp_path: Path) -> ControlFile:
    durable.replace_file(tmp_path / CONTROL_FILE_NAME, encode_control_state(STATE))
    return ControlFile.read(tmp_path)


def test_what_was_persisted_is_read_back(control: ControlFile, tmp_path: Path) -> None:
    state = replace(STATE, promised=A, archived_lsn=7)
    control.persist(state)
    assert control.state == ControlFile.read(tmp_path).state == state


@pytest.mark.parametrize("call", ["open", "pwrite", "fsync", "rename"])
def test_a_failure_leaves_the_old_file_and_the_old_state(
    control: ControlFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Copy, edit, persist, publish: memory is never ahead of the disk."""
    with monkeypatch.context() as broken:
        broken.setattr(os, call, raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(StorageError):
            control.persist(replace(STATE, promised=A))
    assert control.state == ControlFile.read(tmp_path).state == STATE
    control.persist(replace(STATE, promised=C))
    assert ControlFile.read(tmp_path).state.promised == C


def test_the_new_content_is_synced_before_it_gets_the_name_and_the_name_after(
    control: ControlFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = []
    rename = os.rename

    def counted(old: Path, new: Path) -> None:
        order.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", lambda fd: order.append("fsync"))
    monkeypatch.setattr(os, "rename", counted)
    control.persist(replace(STATE, promised=A))
    assert order == ["fsync", "rename", "fsync"]


def test_hints_update_the_state_on_disk(control: ControlFile, tmp_path: Path) -> None:
    control.persist(replace(STATE, promised=A))
    control.persist_hints(lambda: Hints(START_LSN + 16, START_LSN + 8, START_LSN))
    state = ControlFile.read(tmp_path).state
    assert state == replace(STATE, promised=A, flush_lsn=START_LSN + 16, commit_lsn=START_LSN + 8)


def test_a_state_with_older_hints_does_not_lower_them(control: ControlFile, tmp_path: Path) -> None:
    """The acceptor's copy has the hints of its start."""
    control.persist_hints(lambda: Hints(START_LSN + 80, START_LSN + 80, START_LSN + 40))
    flushed = replace(STATE, flush_lsn=START_LSN + 80)
    control.persist(replace(flushed, promised=C))
    state = ControlFile.read(tmp_path).state
    assert state == replace(
        flushed, promised=C, commit_lsn=START_LSN + 80, truncate_lsn=START_LSN + 40
    )


def test_equal_hints_are_not_written_again(
    control: ControlFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(durable, "replace_file", lambda *_: pytest.fail("nothing is new"))
    control.persist_hints(lambda: Hints(STATE.flush_lsn, STATE.commit_lsn, STATE.truncate_lsn))


def test_a_lowered_flush_lsn_is_never_raised_by_an_older_value(control: ControlFile) -> None:
    """A truncation first publishes the lower position. A thread that saves positions runs before
    or after that, and never saves the old value."""
    positions = {"flush_lsn": START_LSN + 80}

    def read() -> Hints:
        return Hints(positions["flush_lsn"], START_LSN, START_LSN)

    control.persist_hints(read)
    assert control.state.flush_lsn == START_LSN + 80
    positions["flush_lsn"] = START_LSN + 40  # published, then persisted, then truncated
    control.persist_hints(read)
    assert control.state.flush_lsn == START_LSN + 80, "only the acceptor lowers it"
    control.persist(replace(control.state, flush_lsn=START_LSN + 40))
    control.persist_hints(read)
    assert control.state.flush_lsn == START_LSN + 40


def test_nobody_persists_while_hints_are_read_and_saved(control: ControlFile) -> None:
    """A truncation that publishes the lower position just after it was read persists it last."""
    lowered = replace(control.state, flush_lsn=START_LSN + 40)
    truncation = Thread(target=control.persist, args=(lowered,))

    def read() -> Hints:
        truncation.start()
        truncation.join(0.1)  # it waits for the lock, or reaches it later: both are covered
        return Hints(START_LSN + 80, START_LSN, START_LSN)

    control.persist_hints(read)
    truncation.join(TIMEOUT)
    assert control.state.flush_lsn == START_LSN + 40


def test_a_missing_file_is_a_loss_not_a_new_timeline(tmp_path: Path) -> None:
    with pytest.raises(ControlFileError, match="does not exist") as caught:
        ControlFile.read(tmp_path)
    assert "another id" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_a_half_written_successor_is_ignored(control: ControlFile, tmp_path: Path) -> None:
    """The crash came before the rename."""
    (tmp_path / (CONTROL_FILE_NAME + ".tmp")).write_bytes(b"QWAL half")
    assert ControlFile.read(tmp_path).state == STATE
    control.persist(replace(STATE, promised=A))
    assert ControlFile.read(tmp_path).state.promised == A
