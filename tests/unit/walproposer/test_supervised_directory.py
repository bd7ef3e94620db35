"""The data directory of a supervised server, as the proposer reads it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.supervision.data_directory import DataDirectory
from quorum_wal.walproposer.supervision.server_role import (
    FIRST_PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    BackOff,
)
from quorum_wal.walproposer.supervision.server_state import Seen, ServerState

SYSTEM_ID = 0xF123_4567_89AB_CDEF


@pytest.fixture
def directory(tmp_path: Path) -> DataDirectory:
    (tmp_path / "PG_VERSION").write_text("15\n")
    (tmp_path / "global").mkdir()
    (tmp_path / "global" / "pg_control").write_bytes(
        SYSTEM_ID.to_bytes(8, sys.byteorder) + bytes(504)
    )
    return DataDirectory(tmp_path)


def tell(directory: DataDirectory, pid: int, status: str) -> None:
    lines = (str(pid), str(directory.path), "1763938000", "5432", "", "127.0.0.1", "1 2", status)
    (directory.path / "postmaster.pid").write_text("\n".join(lines) + "\n")


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_the_state_of_a_running_server(directory: DataDirectory) -> None:
    tell(directory, os.getpid(), "starting")
    assert directory.read_state() == Seen(os.getpid(), "starting")
    (directory.path / "standby.signal").touch()
    assert directory.read_state() == Seen(os.getpid(), "starting", has_standby_signal=True)
    assert directory.system_id() == SYSTEM_ID


def test_a_file_that_a_crash_left_is_no_server(directory: DataDirectory) -> None:
    tell(directory, ended_process(), "ready")
    assert directory.read_state().state is ServerState.ABSENT


def test_single_user_mode_is_no_server(directory: DataDirectory) -> None:
    tell(directory, -os.getpid(), "")
    assert directory.read_state().state is ServerState.ABSENT


def test_one_that_initdb_has_not_filled_yet(tmp_path: Path) -> None:
    seen = DataDirectory(tmp_path).read_state()
    assert seen.state is ServerState.ABSENT
    assert seen.reason == f"{tmp_path} is empty"


def test_a_control_file_that_is_none(directory: DataDirectory) -> None:
    (directory.path / "global" / "pg_control").write_bytes(b"short")
    with pytest.raises(Refusal, match="not a data directory: pg_control is too short"):
        directory.system_id()


def test_pauses_double_up_to_a_limit() -> None:
    back_off = BackOff()
    pauses = [back_off.pause_seconds() for _ in range(10)]
    assert pauses[:3] == [FIRST_PAUSE_SECONDS * 2**n for n in range(3)]
    assert pauses[-1] == PAUSE_SECONDS_MAX
