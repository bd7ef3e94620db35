"""Folders that the user of a command may not enter: one error, at once, with a hint.

The command runs as a user that owns nothing. Root changes to that user inside the process, after
all modules are loaded, because Python itself may be in root's home.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from sk_command import TIMEOUT, Done, assert_refused

from quorum_wal.cli.archive_fetch import PATIENCE_SECONDS
from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pgwal.segment import format_segment_name

NOBODY = 65534
SEGMENT = format_segment_name(1, 1, 1 << 24)
AS_NOBODY = f"""if True:
    import encodings.idna, os, pkgutil, sys
    from importlib import import_module
    for package in ("backup", "cli", "objectstore", "telemetry", "walproposer"):
        name = "quorum_wal." + package
        for module in pkgutil.walk_packages(import_module(name).__path__, name + "."):
            import_module(module.name)
    from quorum_wal.cli.main import main
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
    sys.exit(main())
"""


def sk_as_nobody(*arguments: object, env: Mapping[str, str] | None = None) -> Done:
    """Run it to its end."""
    return subprocess.run(
        [sys.executable, "-c", AS_NOBODY, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def own_folder(path: Path) -> Path:
    """A folder of the user that the commands run as."""
    path.mkdir()
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    return path


@pytest.fixture
def locked(open_path: Path) -> Iterator[Path]:
    folder = open_path / "locked"
    folder.mkdir()
    yield folder
    folder.chmod(0o700)


def test_the_programs_of_postgres_that_rejoin_may_not_enter(
    cluster: QuorumCluster, open_path: Path, locked: Path
) -> None:
    programs = locked / "venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("postgres", "initdb", "pg_ctl", "pg_controldata", "pg_rewind"):
        (programs / name).touch(mode=0o755)
    locked.chmod(0)
    old = own_folder(open_path / "old")
    (old / "PG_VERSION").write_text(f"{cluster.postgres.binaries.major}\n")
    done = sk_as_nobody(
        *("rejoin", "--old-primary", old, "--new-primary", cluster.postgres.dsn()),
        *("--safekeepers", ",".join(s.address for s in cluster.safekeepers)),
        env={"SK_PG_BIN": str(programs)},
    )
    assert_refused(done, ExitCode.FAILED, f"no Postgres server in {programs}", "SK_PG_BIN")
    assert [path.name for path in old.iterdir()] == ["PG_VERSION"]


@pytest.mark.parametrize("prefetch", [0, 8])
def test_an_archive_that_fetch_may_not_enter(open_path: Path, locked: Path, prefetch: int) -> None:
    """A retry would not repair it, and recovery must not continue without it."""
    (locked / "archive").mkdir()
    locked.chmod(0)
    segment = own_folder(open_path / "pg_wal") / "segment"
    began = time.monotonic()
    done = sk_as_nobody(
        *("archive", "fetch", "--archive", locked / "archive", "--prefetch", prefetch),
        *("--timeline", f"{'0' * 32}/{'1' * 32}", SEGMENT, segment),
    )
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert_refused(done, ExitCode.CANNOT_TELL, "Permission denied", "Let the user that runs this")
    assert not segment.exists()
