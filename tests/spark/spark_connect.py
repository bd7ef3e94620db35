"""Spark Connect: a server, and clients that read batches and streams.

Not part of the suite, because it needs packages that nothing else here needs: pandas and grpcio.
`python -m tests.spark.versions` installs them, and runs this file by its name.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.spark.session import prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SPARK_HOME = Path(pyspark.__file__).parent
DRIVER = Path(__file__).parent / "connect_driver.py"
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
HOST = "127.0.0.1"
TIMEOUT = 600.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server."""
    prepare_environment()
    port, folder = free_port(), tmp_path_factory.mktemp("connect")
    settings = {
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": HOST,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    command = [
        *(SPARK_HOME / "bin/spark-submit", "--class", SERVER, "--master", "local[2,4]"),
        *(word for name, value in settings.items() for word in ("--conf", f"{name}={value}")),
        "local:/dev/null",
    ]
    environment = {**os.environ, "SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": HOST}
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=log, stderr=log) as process,
    ):
        try:
            wait_until(lambda: answers(port) or process.poll() is not None, TIMEOUT, "a server")
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            yield f"sc://{HOST}:{port}"
        finally:
            process.kill()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def test_batches(
    server: str, session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    found = found_by_client(server, "batches", server_wal, server_catalog, tmp_path)
    assert_as_classic(found, session, server_wal, server_catalog)


def test_streams(
    server: str, session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    found = found_by_client(server, "streams", server_wal, server_catalog, tmp_path)
    assert_as_classic(found, session, server_wal, server_catalog)


def found_by_client(
    server: str, kind: str, wal: Path, catalog: Path, work: Path
) -> dict[str, int | str]:
    command = [sys.executable, DRIVER, server, kind, wal, catalog, work]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert done.returncode == 0, done.stderr
    found: dict[str, int | str] = json.loads(done.stdout)
    return found


def assert_as_classic(
    found: dict[str, int | str], session: SparkSession, wal: Path, catalog: Path
) -> None:
    """The same rows as in a classic session, and our errors."""
    strict, mirror = str(found.pop("strict")), str(found.pop("mirror"))
    assert "UndecodedChange: WAL at 0/" in strict
    assert "UnsupportedSpark: a mirror needs a classic session" in mirror
    records = session.read.format("pg_wal").options(path=str(wal))
    changes = session.read.format("pg_changes").options(path=str(wal), catalog=str(catalog))
    assert found == {
        "pg_wal": records.load().count(),
        "pg_changes": changes.option("on_unknown", "pass").load().count(),
    }
