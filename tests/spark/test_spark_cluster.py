"""The same rows on a cluster: Spark's own of local processes, whose executors are processes apart
from the driver, and one of them killed in the middle. All from the pip package.
`tests/containers/spark_cluster.py` has a standalone cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyspark
import pytest
from sink_rows import written
from wal_rows import lsns, rows_of

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.session import prepare_environment

SPARK_HOME = Path(pyspark.__file__).parent
DRIVER = Path(__file__).parent / "cluster_driver.py"
MASTER = "local-cluster[2,1,768]"
EXECUTOR = b"CoarseGrainedExecutorBackend"
TIMEOUT = 400.0


@pytest.fixture(scope="module")
def expected(server_wal: Path) -> list[int]:
    return lsns(rows_of(FolderInput(str(server_wal)), columns=("lsn",)))


@pytest.fixture
def environment(class_archive: None, tmp_path: Path) -> dict[str, str]:
    """Spark's own cluster writes to the home of Spark: one of links."""
    prepare_environment()
    home = tmp_path / "home"
    home.mkdir()
    for path in SPARK_HOME.iterdir():
        (home / path.name).symlink_to(path)
    return {**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"}


@contextmanager
def running(
    command: list[str], environment: dict[str, str], log_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Killed with its processes at the end."""
    with (
        log_path.open("ab") as log,
        subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True
        ) as process,
    ):
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_an_executor_is_killed(
    environment: dict[str, str], server_wal: Path, tmp_path: Path, expected: list[int]
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    command = [sys.executable, str(DRIVER), MASTER, str(server_wal), str(tmp_path)]
    with running(command, environment, tmp_path / "driver.log") as driver:
        wait_until(
            lambda: driver.poll() is not None or (offsets / "1").exists(), TIMEOUT, "a batch"
        )
        assert driver.poll() is None, (tmp_path / "driver.log").read_text()[-3000:]
        assert len(executors(driver.pid)) == 2
        os.kill(executors(driver.pid)[0], signal.SIGKILL)
        assert driver.wait(TIMEOUT) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert read_batch(tmp_path) == expected
    assert written(tmp_path / "lake") == expected
    # The third executor replaced the one that was killed.
    assert {path.name for path in (tmp_path / "home" / "work").glob("app-*/*")} >= {"0", "1", "2"}


def executors(session_id: int) -> list[int]:
    """The executors among the processes of the driver's session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if os.getsid(pid) == session_id and EXECUTOR in path.read_bytes():
                found.append(pid)
        except OSError:
            continue  # it has ended
    return found


def read_batch(work: Path) -> list[int]:
    return [int(line) for line in (work / "batch").read_text().split()]
