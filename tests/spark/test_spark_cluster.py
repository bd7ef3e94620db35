"""The same rows on a cluster: a standalone master with two workers, one of them killed in the
middle. All from the pip package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyspark
import pytest
from sink_rows import written
from wal_rows import lsns, rows_of

from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.session import prepare_environment

pytestmark = pytest.mark.usefixtures("class_archive")

SPARK_HOME = Path(pyspark.__file__).parent
DRIVER = Path(__file__).parent / "cluster_driver.py"
HOST = "127.0.0.1"
TIMEOUT = 400.0


@dataclass
class StandaloneCluster:
    """A master and its workers, each a process."""

    url: str
    status_url: str
    workers: list[subprocess.Popen[bytes]]

    def alive_workers(self) -> int:
        try:
            with urlopen(self.status_url, timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
        except (OSError, json.JSONDecodeError):  # for a moment there is only a page for people
            return 0
        return int(status["aliveworkers"])


@pytest.fixture(scope="module")
def expected(server_wal: Path) -> list[int]:
    return lsns(rows_of(FolderInput(str(server_wal)), columns=("lsn",)))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    prepare_environment()
    return {
        **os.environ,
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": HOST,
        "SPARK_WORKER_DIR": str(tmp_path / "workers"),
        "SPARK_DAEMON_MEMORY": "256m",
    }


@pytest.fixture
def standalone(environment: dict[str, str], tmp_path: Path) -> Iterator[StandaloneCluster]:
    port, status_port = free_port(), free_port()
    url = f"spark://{HOST}:{port}"
    deploy = "org.apache.spark.deploy"
    with ExitStack() as processes:

        def start(kind: str, *arguments: str) -> subprocess.Popen[bytes]:
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"{deploy}.{kind}", *arguments]
            return processes.enter_context(running(command, environment, tmp_path / "daemons.log"))

        ports = ("--port", str(port), "--webui-port", str(status_port))
        start("master.Master", "--host", HOST, *ports)
        workers = [
            start("worker.Worker", "--cores", "1", "--memory", "1g", "--webui-port", "0", url)
            for _ in range(2)
        ]
        cluster = StandaloneCluster(url, f"http://{HOST}:{status_port}/json/", workers)
        wait_until(lambda: cluster.alive_workers() == 2, TIMEOUT, "two workers")
        yield cluster


@contextmanager
def running(
    command: list[str], environment: dict[str, str], log_path: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Killed at the end."""
    with (
        log_path.open("ab") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def test_a_worker_is_killed(
    standalone: StandaloneCluster,
    environment: dict[str, str],
    server_wal: Path,
    tmp_path: Path,
    expected: list[int],
) -> None:
    offsets = tmp_path / "checkpoint" / "offsets"
    command = [sys.executable, str(DRIVER), standalone.url, str(server_wal), str(tmp_path)]
    with running(command, environment, tmp_path / "driver.log") as driver:
        wait_until(
            lambda: driver.poll() is not None or (offsets / "1").exists(), TIMEOUT, "a batch"
        )
        assert driver.poll() is None
        standalone.workers[0].kill()
        assert driver.wait(TIMEOUT) == 0, (tmp_path / "driver.log").read_text()[-3000:]
    assert standalone.workers[0].wait(TIMEOUT) != 0
    assert read_batch(tmp_path) == expected
    assert written(tmp_path / "lake") == expected


def read_batch(work: Path) -> list[int]:
    return [int(line) for line in (work / "batch").read_text().split()]
