"""Postgres on this machine: it is found, or the error explains its absence; the end of a
program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server import restored_server
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.pg_server.errors import DeadlineExceeded, ProgramFailed, ServerFailed, Unavailable
from quorum_wal.pg_server.program import run_program
from quorum_wal.pg_server.restored_server import LOG_FILE, LOG_TAIL_LINES, RestoredServer


def test_no_postgres_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="no Postgres 9 found") as unavailable:
        find_postgres(9)
    assert "SK_PG_BIN" in unavailable.value.hint
    monkeypatch.setenv("SK_PG_BIN", str(tmp_path))
    with pytest.raises(Unavailable, match="no Postgres server in"):
        find_postgres()


def test_a_folder_without_access_is_no_postgres(tmp_path: Path) -> None:
    """For example the one of a virtual environment in another user's home."""
    programs = tmp_path / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "postgres").touch(mode=0o755)
    script = f"""if True:
        import os
        from pathlib import Path
        from quorum_wal.pg_server.binaries import PostgresBinaries
        from quorum_wal.pg_server.errors import Unavailable
        os.chmod({str(tmp_path / "venv")!r}, 0)
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            PostgresBinaries.at(Path({str(programs)!r}))
        except Unavailable as error:
            print(error)
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    (tmp_path / "venv").chmod(0o700)
    assert done.stderr == ""
    assert done.stdout == f"no Postgres server in {programs}\n"


def test_the_end_of_a_program_is_reported() -> None:
    done = run_program(["sh", "-c", "echo $WORD; exit 3"], env={"WORD": "said"}, check=False)
    assert (done.returncode, done.stdout) == (3, "said\n")
    with pytest.raises(ProgramFailed, match=r"127(?s:.*)no-such-program"):
        run_program(["no-such-program"])
    with pytest.raises(DeadlineExceeded, match="the end of: sleep 60"):
        run_program(["sleep", "60"], timeout=0.1)


def test_a_restored_server_that_ended_has_a_reason(
    pg_binaries: PostgresBinaries, tmp_path: Path
) -> None:
    """The error is not only that no server answers, which is all that a client sees."""
    reason = "FATAL:  recovery ended before the target was reached"
    lines = [*(f"line {number}" for number in range(20)), reason, "shut down"]
    (tmp_path / LOG_FILE).write_text("\n".join(lines))

    def connect() -> NoReturn:
        raise ConnectionRefusedError

    server = RestoredServer(tmp_path, pg_binaries, None)
    with pytest.raises(ServerFailed, match=f"of the restored server failed: {reason}") as failed:
        server.wait_recovered(connect)
    assert failed.value.hint.endswith(LOG_FILE)
    assert failed.value.log_tail == tuple(lines[-LOG_TAIL_LINES:])


def test_an_error_of_a_running_server_is_raised(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restored_server, "CONNECT_SECONDS_MAX", 0.5)
    attempts: list[int] = []

    def connect() -> NoReturn:
        attempts.append(1)
        raise ConnectionRefusedError

    server = RestoredServer(postgres.data_dir, postgres.binaries, server_account())
    with pytest.raises(ConnectionRefusedError):
        server.wait_recovered(connect)
    assert len(attempts) > 1
