"""No page is written while a server runs, according to `postmaster.pid`."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from quorum_wal.pageserver.checks.page_repair import check_stopped
from quorum_wal.pageserver.errors import PageserverError


@pytest.mark.parametrize(
    "text",
    [f"{os.getpid()}\n/data\n", f"-{os.getpid()}\n/data\n", "", "half a num", f"{1 << 70}\n"],
    ids=["runs", "runs in single-user mode", "being written", "damaged", "no process's number"],
)
def test_a_running_server_is_detected(tmp_path: Path, text: str) -> None:
    (tmp_path / "postmaster.pid").write_text(text)
    with pytest.raises(PageserverError, match="a server is running in"):
        check_stopped(tmp_path)


def test_a_stopped_and_a_killed_server(tmp_path: Path) -> None:
    check_stopped(tmp_path)
    with subprocess.Popen(["true"]) as process:
        process.wait()
    (tmp_path / "postmaster.pid").write_text(f"{process.pid}\n/data\n")
    check_stopped(tmp_path)
