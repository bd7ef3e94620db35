"""What the ring shares: one Spark session, and the WAL of one stopped server, in small segments."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pg_fixtures.binaries import PostgresBinaries
from pg_fixtures.postgres import Postgres
from spark.session import new_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SEGMENT_BYTES = 1 << 20

#: two workers, four tries of each task, nothing that a test does not need
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


@pytest.fixture(scope="session")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    folder = tmp_path_factory.mktemp("spark")
    settings = {**SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse")}
    made = new_session("tests", "local[2,4]", settings)
    made.sparkContext.setLogLevel("OFF")
    yield made
    made.stop()


@pytest.fixture(scope="session")
def server_wal(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """pg_wal of a server that was stopped in good order; not to be changed."""
    folder = tmp_path_factory.mktemp("server")
    postgres = Postgres(
        pg_binaries,
        folder / "data",
        settings={"wal_keep_size": "1GB", "max_prepared_transactions": 4, "autovacuum": False},
        wal_seg_size=SEGMENT_BYTES,
        template=initdb_template(pg_binaries, SEGMENT_BYTES),
    )
    with postgres:
        _write_wal(postgres)
        postgres.stop()
        shutil.copytree(postgres.pg_wal, folder / "pg_wal")
    return folder / "pg_wal"


@pytest.fixture
def wal_folder(server_wal: Path, tmp_path: Path) -> Path:
    """A copy of `server_wal` that a test may damage."""
    folder = tmp_path / "pg_wal"
    shutil.copytree(server_wal, folder)
    return folder


def _write_wal(postgres: Postgres) -> None:
    """Some segments: a record over three of them, a switch, two phases, subtransactions."""
    postgres.execute("CREATE TABLE t (id serial PRIMARY KEY, payload text)")
    fill = "INSERT INTO t (payload) SELECT repeat(md5(i::text), 4) FROM generate_series(1, 4000) i"
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
