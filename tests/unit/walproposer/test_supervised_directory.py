"""The data directory of a supervised server, as the proposer reads it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from server_files import SYSTEM_ID, ServerFiles

from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.supervision.data_directory import DataDirectory
from quorum_wal.walproposer.supervision.server_role import (
    FIRST_PAUSE_SECONDS,
    PAUSE_SECONDS_MAX,
    BackOff,
)
from quorum_wal.walproposer.supervision.server_state import Seen, ServerState


@pytest.fixture
def files(tmp_path: Path) -> ServerFiles:
    return ServerFiles(tmp_path)


@pytest.fixture
def directory(files: ServerFiles) -> DataDirectory:
    return DataDirectory(files.path)


def ended_process() -> int:
    with subprocess.Popen(["true"]) as process:
        return process.pid


def test_the_state_of_a_running_server(directory: DataDirectory, files: ServerFiles) -> None:
    files.tell(os.getpid(), "starting")
    assert directory.read_state() == Seen(os.getpid(), "starting")
    (directory.path / "standby.signal").touch()
    assert directory.read_state() == Seen(os.getpid(), "starting", has_standby_signal=True)
    assert directory.system_id() == SYSTEM_ID


def test_a_file_that_a_crash_left_is_no_server(
    directory: DataDirectory, files: ServerFiles
) -> None:
    files.tell(ended_process(), "ready")
    assert directory.read_state().state is ServerState.ABSENT


def test_single_user_mode_is_no_server(directory: DataDirectory, files: ServerFiles) -> None:
    files.tell(-os.getpid(), "")
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
