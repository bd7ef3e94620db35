"""What the ring shares: one Spark session, the WAL of one stopped server, in small segments, and a
cluster to fail over."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark
import pytest
from failover_world import SETTINGS as FAILOVER_SETTINGS
from failover_world import FailoverWorld

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.session import new_session, prepare_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BYTES = 1 << 20

#: Options of Java for drivers, and for the processes of a standalone cluster.
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS", "SPARK_TEST_EXECUTOR_OPTS")
# Java's second compiler and its threads that collect garbage would take more time than they save:
# no query runs for long.
for _variable in JAVA_VARIABLES:
    os.environ[_variable] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
RING = Path(__file__).parent
CLASS_DRIVER = RING / "class_driver.py"
os.environ["SPARK_CONF_DIR"] = str(RING / "conf")  # read by Spark's scripts
PRELOADED_VARIABLE = "PYTHON_WORKERS_PRELOADED"

#: two workers, four tries of each task, only what a test needs; to compile code for a query would
#: take more time than it saves
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def class_archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Each Java maps the classes of Spark from one file, as a first one has loaded them. To load
    them is half of what a short driver costs. The file is kept for later runs. Java ignores a file
    that does not fit, as that of another Java."""
    folder = request.config.cache.mkdir("spark-classes")
    archive = folder / f"{pyspark.__version__}.jsa"
    with (folder / "lock").open("w") as lock:
        flock(lock, LOCK_EX)  # until the file is closed: the processes of pytest-xdist share it
        if not archive.exists():
            prepare_environment()
            unfinished = archive.with_suffix(".unfinished")
            archive_classes(tmp_path_factory.mktemp("classes"), unfinished)
            unfinished.rename(archive)
    for variable in JAVA_VARIABLES:
        os.environ[variable] += f" -XX:SharedArchiveFile={archive} -Xlog:disable"


def archive_classes(folder: Path, archive: Path) -> None:
    """Runs a driver in `folder` that uses what most queries use."""
    variable = JAVA_VARIABLES[0]
    options = f"{os.environ[variable]} -XX:ArchiveClassesAtExit={archive} -Xlog:disable"
    # The output ends when Java does, which is after the driver.
    subprocess.run(
        [sys.executable, CLASS_DRIVER, folder],
        env={**os.environ, variable: options}, capture_output=True, check=True,
    )  # fmt: skip


@pytest.fixture(scope="session")
def session(
    class_archive: None, server_wal: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    with pytest.MonkeyPatch.context() as environment:  # which Java and its children inherit
        environment.setenv(PRELOADED_VARIABLE, str(server_wal))
        made = new_session("tests", "local[2,4]", settings)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def wal_server(
    pg_binaries: PostgresBinaries, initdb_template: Callable[[PostgresBinaries, int], Path]
) -> Callable[..., Postgres]:
    """`wal_server(data, **settings)`: one with small segments, which it keeps; not started. By
    default of the version of the other tests."""

    def make(data: Path, binaries: PostgresBinaries = pg_binaries, **settings: Any) -> Postgres:
        return Postgres(
            binaries,
            data,
            settings={"wal_keep_size": "1GB", "autovacuum": False, **settings},
            wal_seg_size=SEGMENT_BYTES,
            template=initdb_template(binaries, SEGMENT_BYTES),
        )

    return make


@pytest.fixture(scope="session")
def server_wal(
    wal_server: Callable[..., Postgres], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """pg_wal of a server that was stopped in good order; not to be changed."""
    folder = tmp_path_factory.mktemp("server")
    with wal_server(folder / "data", max_prepared_transactions=4) as postgres:
        _write_wal(postgres)
        (folder / "catalog.json").write_bytes(take_catalog(postgres.dsn()).to_json())
        postgres.stop()
        shutil.copytree(postgres.pg_wal, folder / "pg_wal")
    return folder / "pg_wal"


@pytest.fixture(scope="session")
def server_catalog(server_wal: Path) -> Path:
    """The catalog of the database of `server_wal`, at the end of the WAL."""
    return server_wal.with_name("catalog.json")


@pytest.fixture
def wal_folder(server_wal: Path, tmp_path: Path) -> Path:
    """A copy of `server_wal` that a test may damage."""
    folder = tmp_path / "pg_wal"
    shutil.copytree(server_wal, folder)
    return folder


@pytest.fixture
def wal_level() -> str:
    """Of `failover_world`; a test may parametrize it."""
    return "replica"


@pytest.fixture
def archive_folder(tmp_path: Path) -> Path:
    """Of `failover_world`."""
    return tmp_path / "archive"


@pytest.fixture
def failover_world(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    archive_folder: Path,
    wal_level: str,
) -> Iterator[FailoverWorld]:
    """Its safekeepers archive all committed WAL at once."""
    cluster = quorum_cluster(
        proxied=True,
        wal_seg_size=SEGMENT_BYTES,
        settings={**FAILOVER_SETTINGS, "wal_level": wal_level, "max_prepared_transactions": 16},
        safekeeper_arguments=(f"--archive={archive_folder}", "--archive-partial-interval=0.2"),
    )
    standby = standby_factory(cluster.postgres, "standby", cluster.replica_conninfo())
    with TcpProxy("127.0.0.1", cluster.postgres.port) as front:
        yield FailoverWorld(cluster, standby, front)


def _write_wal(postgres: Postgres) -> None:
    """Some segments: a record over three of them, a switch, two phases, subtransactions."""
    postgres.execute("CREATE TABLE t (id serial PRIMARY KEY, payload text)")
    fill = "INSERT INTO t (payload) SELECT repeat(md5(i::text), 14) FROM generate_series(1, 2000) i"
    postgres.execute(fill)
    postgres.execute("UPDATE t SET payload = payload || 'x' WHERE id % 3 = 0")
    postgres.execute("SELECT pg_logical_emit_message(true, 'long', repeat('x', 2500000))")
    with postgres.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO t (payload) VALUES ('outer')")
        connection.execute("SAVEPOINT inner_one")
        connection.execute("INSERT INTO t (payload) VALUES ('inner')")
        connection.commit()
        connection.execute("DELETE FROM t WHERE id < 10")
        connection.execute("PREPARE TRANSACTION 'two phases'")
    postgres.execute("COMMIT PREPARED 'two phases'")
    postgres.execute("SELECT pg_switch_wal()")
    postgres.execute(fill)
    postgres.execute("DELETE FROM t WHERE id % 2 = 0")
    postgres.execute("CHECKPOINT")
    postgres.execute(fill)
