"""`postmaster.pid` as Postgres writes it, line by line."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from quorum_wal.pg_server.postmaster_file import (
    PostmasterFile,
    is_process_alive,
    read_postmaster_file,
)

TEXT = f"""4711
/var/lib/postgresql/15/main
1763938000
5433
/var/run/postgresql
127.0.0.1
  5433001    196608
{"ready":8}
"""


def test_a_whole_file() -> None:
    assert PostmasterFile.parse(TEXT) == PostmasterFile(4711, 5433, 196608, "ready")


def test_a_server_without_a_segment_of_shared_memory() -> None:
    server = PostmasterFile.parse(TEXT.replace("  5433001    196608", ""))
    assert server == PostmasterFile(4711, 5433, None, "ready")


@pytest.mark.parametrize("lines", range(8))
def test_a_file_that_is_being_written_says_nothing(lines: int) -> None:
    assert PostmasterFile.parse("".join(TEXT.splitlines(keepends=True)[:lines])) is None


def test_no_file(tmp_path: Path) -> None:
    assert read_postmaster_file(tmp_path) is None


def test_whether_a_process_is_alive() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert is_process_alive(process.pid)
        process.kill()
        process.wait()
        assert not is_process_alive(process.pid)
    assert is_process_alive(1), "of another account, perhaps"
    assert is_process_alive(1 << 70), "it cannot be told"
