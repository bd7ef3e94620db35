"""`sk dev` and `sk demo`: they do what they say, and leave nothing behind, whatever ends them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sk_command import assert_refused, sk

from quorum_wal.pg_fixtures.process_table import family
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0


@contextmanager
def started(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """`sk` in the background, with its output in tmp_path / "out" and its temporary folders in
    tmp_path."""
    with open(tmp_path / "out", "ab") as out:
        process = subprocess.Popen(
            [*SK, *arguments],
            stdout=out,
            stderr=out,
            env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def output(tmp_path: Path) -> str:
    return (tmp_path / "out").read_text()


def interrupt(process: subprocess.Popen[bytes], number: signal.Signals) -> int:
    """Interrupt it; returns its exit code. All its child processes have ended, too."""
    below = [entry for entry in family(process.pid) if entry.pid != process.pid]
    assert below
    process.send_signal(number)
    code = process.wait(TIMEOUT)
    wait_until(lambda: not any(e.now() for e in below), TIMEOUT, "the children to end")
    return code


def folders(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in tmp_path.iterdir() if path.is_dir())


def test_the_demo_passes_and_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, "demo", "--rows", "100") as process:
        code = process.wait(3 * TIMEOUT)
    text = output(tmp_path)
    assert code == 0, text
    assert "Traceback" not in text
    assert re.search(r"^rows lost +0$", text, re.MULTILINE)
    assert "PASSED: nothing acknowledged was lost" in text
    records = set(re.findall(r"pg_waldump reads (\d+) records", text))
    assert len(records) == 1
    assert int(records.pop()) > 1000
    acknowledged = re.search(r"^rows acknowledged +(\d+)$", text, re.MULTILINE)
    assert acknowledged is not None
    assert int(acknowledged[1]) >= 5 * 100
    for fault in ("safekeeper 3", "safekeeper 2", "the proposer", "Postgres"):
        assert f"kill -9 {fault}" in text
    assert folders(tmp_path) == []


def test_an_interrupted_demo_cleans_up(tmp_path: Path) -> None:
    with started(tmp_path, "demo") as process:
        wait_until(lambda: "commits wait" in output(tmp_path), TIMEOUT, "the demo to begin")
        assert interrupt(process, signal.SIGINT) == 130
    assert "interrupted" in output(tmp_path)
    assert "Traceback" not in output(tmp_path)
    assert folders(tmp_path) == []


def test_a_demo_that_cannot_run_says_why(tmp_path: Path) -> None:
    """After a failure the folder is kept and named."""
    fake = tmp_path / "bin"
    fake.mkdir()
    for program in ("postgres", "initdb"):
        (fake / program).write_text(f"#!{sys.executable}\nprint('postgres (PostgreSQL) 16.9')\n")
        (fake / program).chmod(0o755)
    done = sk("demo", env={"SK_PG_BIN": str(fake), "TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    (hint,) = re.findall(r"^hint: The logs and all data are in (\S+)$", done.stderr, re.MULTILINE)
    assert Path(hint).is_dir()
    done = sk("demo", "--dir", tmp_path)
    assert_refused(done, 1, "is not empty", "Choose a new one")


def test_a_cluster_to_play_with_until_it_is_ended(tmp_path: Path) -> None:
    """The second run continues with the data of the first, which ended in good order."""
    arguments = ("dev", "--dir", str(tmp_path / "play"), "--members", "1")
    for number in (signal.SIGINT, signal.SIGTERM):
        (tmp_path / "out").unlink(missing_ok=True)
        with started(tmp_path, *arguments) as process:
            wait_until(lambda: "Ctrl-C ends" in output(tmp_path), TIMEOUT, "the cluster to run")
            dsn = re.search(r"^Postgres \S+ +(host=.*)$", output(tmp_path), re.MULTILINE)
            keeper = re.search(r"^safekeeper 1 +(\S+)", output(tmp_path), re.MULTILINE)
            assert dsn is not None
            assert keeper is not None
            members = ("--safekeepers", keeper[1])
            assert "OK: commits proceed, 1 of 1" in sk("status", *members).stdout
            listed = sk("timeline", "list", *members).stdout
            assert len(listed.splitlines()) == 2, number  # the heading and one timeline
            assert interrupt(process, number) == 0
        assert output(tmp_path).endswith("all processes have ended\n")
        assert "Traceback" not in output(tmp_path)
    log = (tmp_path / "play/postgres.log").read_text()
    assert "database system is shut down" in log
    assert "automatic recovery" not in log
