"""`sk restore` and `sk backup` refuse wrong options before they connect to a server."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from quorum_wal.cli.main import cli


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--target-lsn", "0/1", "--target-xid", "3"), "--target-lsn and --target-xid exclude"),
        (("--target-lsn", "x"), "invalid LSN 'x'"),
        (("--target-time", "yesterday"), "--target-time: Invalid isoformat string"),
        (("--target-time", "2026-11-21 10:00"), "needs its offset from UTC"),
        (("--promote",), "need --server"),
        (("--promote", "--server", "host=x"), "--promote needs --safekeepers"),
        (("--promote", "--server", "host=x", "--target-xid", "3"), "--target-xid makes a copy"),
        (("--start", "--promote", "--server", "host=x"), "--start excludes --promote"),
        (("--tablespace", "/a"), "--tablespace needs OLD=NEW"),
        (("--safekeeper-conninfo", "password=secret"), "keep it in a passfile"),
    ],
)
def test_restore(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    where = ["--archive", str(tmp_path), "--data-dir", str(tmp_path / "data")]
    done = CliRunner().invoke(cli, ["restore", *where, *arguments])
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())
    assert "secret" not in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("prune",), "give --keep N, --days D, or both"),
        (("prune", "--keep", "0"), "0 is not in the range x>=1"),
        (("create", "--from", "host=x", "--max-rate", "1kB"), "must be between 32kB and 1GB"),
        (("create", "--from", "host=x", "--compression", "99"), "is not in the range"),
    ],
)
def test_backup(arguments: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["backup", *arguments, "--archive", str(tmp_path)])
    assert done.exit_code == 2
    assert sentence in " ".join(done.output.split())
