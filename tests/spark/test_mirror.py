"""A mirror equals the tables on the primary, whatever is changed, and whatever is killed."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from iceberg_tables import assert_iceberg_tables
from mirror_workload import Workload
from mirror_world import create_tables, mirrored_rows, rows_in_postgres
from pending_commit import PendingCommit
from pyspark.errors import StreamingQueryException
from random_mirrors import (
    PREPARED_MAX,
    STANDBY_SETTINGS,
    prepare,
    run_once,
    run_seed,
    settings,
)

from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import run_sk
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import find_postgres
from quorum_wal.spark.errors import CatalogError, MirrorError
from quorum_wal.spark.jobs import table_base
from quorum_wal.spark.mirror import initial_snapshot, mirror_stream
from quorum_wal.spark.mirror.mirror_stream import MirrorStream
from quorum_wal.spark.mirror.reader import read_mirror
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.version import TableFormat, Versions
from quorum_wal.spark.sources.pg_changes import PgChangesDataSource

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = 120.0
MIRRORED = ("shop.orders", "shop.items", "shop.log", "shop.parts_n", "shop.parts_s")


@pytest.mark.parametrize(("wal_level", "major"), [("logical", 16), ("replica", 18)])
def test_random_changes_while_it_is_taken_and_later(
    session: SparkSession,
    wal_server: Callable[..., Postgres],
    tmp_path: Path,
    standby_factory: Callable[..., Postgres],
    monkeypatch: pytest.MonkeyPatch,
    wal_level: str,
    major: int,
) -> None:
    """With `replica`, the first copy is taken from a standby. The catalog is advanced before and
    after each batch."""
    monkeypatch.setattr(mirror_stream, "ADVANCE_BYTES", 1)
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with skip_if_unavailable():
        binaries = find_postgres(major)
    with wal_server(
        tmp_path / "data",
        binaries,
        wal_level=wal_level,
        max_prepared_transactions=PREPARED_MAX,
    ) as postgres:
        prepare(postgres, seed)
        standby = None
        if wal_level == "replica":
            standby = standby_factory(postgres, "standby", postgres.dsn(), **STANDBY_SETTINGS)
        run_seed(session, postgres, tmp_path, seed, standby, batches=1)


def test_a_standby_whose_replay_has_the_lock_of_a_table(
    wal_server: Callable[..., Postgres],
    tmp_path: Path,
    standby_factory: Callable[..., Postgres],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first copy pauses the replay, and lets it go on until the prepared transaction ends. Of a
    replay that the user has paused it says so."""
    with wal_server(tmp_path / "data", max_prepared_transactions=PREPARED_MAX) as postgres:
        create_tables(postgres)
        Workload(postgres, Random(1), alters=False).run(10)
        standby = standby_factory(postgres, "standby", postgres.dsn(), **STANDBY_SETTINGS)
        with postgres.connect(autocommit=False) as connection:
            connection.execute("TRUNCATE shop.items")
            connection.execute("PREPARE TRANSACTION 'truncate'")
        wait_replayed(standby, postgres.flush_lsn(), TIMEOUT)
        taking = replace(settings(postgres, tmp_path / "mirror"), dsn=standby.dsn())
        standby.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: standby.execute(PAUSE_STATE) == [("paused",)], TIMEOUT, "the pause")
        monkeypatch.setattr(initial_snapshot, "TRY_SECONDS_MAX", 1.0)
        with pytest.raises(MirrorError, match="had their locks") as refused:
            MirrorStream(taking).begin()
        assert "The replay of this server is paused" in str(refused.value.hint)
        monkeypatch.undo()
        standby.execute("SELECT pg_wal_replay_resume()")
        with ThreadPoolExecutor(1) as pool:
            taken = pool.submit(MirrorStream(taking).begin)
            wait_until(lambda: standby.execute(WAITS_FOR_LOCK) == [(1,)], TIMEOUT, "a wait")
            postgres.execute("COMMIT PREPARED 'truncate'")
            version, _ = taken.result(TIMEOUT)
        (items,) = (each for each in version.tables if each.name == "shop.items")
        assert items.rows == 0
        assert standby.execute("SELECT pg_is_wal_replay_paused()") == [(False,)]


def test_a_commit_that_waits_for_its_quorum(
    wal_server: Callable[..., Postgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is before the position of the first copy, which would not see the row yet."""
    monkeypatch.setattr(table_base, "WAIT_SECONDS", 0.5)
    with wal_server(tmp_path / "data") as postgres:
        create_tables(postgres)
        taking = MirrorStream(settings(postgres, tmp_path / "mirror"))
        postgres.configure(synchronous_standby_names="absent")
        commit = PendingCommit(postgres, "INSERT INTO shop.items VALUES (1, 'waits', 1)")
        commit.wait_blocked(TIMEOUT)
        with pytest.raises(CatalogError, match=r"transaction \d+ has been running for more than"):
            taking.begin()
        postgres.configure(synchronous_standby_names="")
        commit.wait_returned(TIMEOUT)
        version, _ = taking.begin()
        (items,) = (each for each in version.tables if each.name == "shop.items")
        assert items.rows == 1


PAUSE_STATE = "SELECT pg_get_wal_replay_pause_state()"
WAITS_FOR_LOCK = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
#: Spark waits for ten seconds.
SLOW_PYTHON = """#!/bin/sh
case "$*" in *python_streaming_source_runner*) mkdir '{started}' 2>/dev/null && sleep 12 ;; esac
exec '{python}' "$@"
"""


def test_a_python_process_that_starts_slowly(
    session: SparkSession,
    wal_server: Callable[..., Postgres],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a machine under load. The stream begins again."""
    started, python = tmp_path / "started", tmp_path / "python"
    python.write_text(SLOW_PYTHON.format(started=started, python=sys.executable))
    python.chmod(0o755)
    with wal_server(tmp_path / "data") as postgres:
        create_tables(postgres)
        MirrorStream(settings(postgres, tmp_path / "mirror")).begin()
        postgres.execute("INSERT INTO shop.orders (id, state) VALUES (1, 'new')")
        other = session.newSession()  # with its own source, which keeps the Python that it gets
        with monkeypatch.context() as patched:
            patched.setattr(session.sparkContext, "pythonExec", str(python))
            other.dataSource.register(PgChangesDataSource)
        assert run_once(other, postgres, tmp_path / "mirror") == 1
        assert started.exists()


def test_changed_definitions(
    session: SparkSession, wal_server: Callable[..., Postgres], tmp_path: Path
) -> None:
    """Of existing, new, renamed and dropped tables, between changes of rows. The tables are also
    Iceberg tables."""
    mirror = tmp_path / "mirror"
    iceberg = {"table_format": TableFormat.ICEBERG}
    with wal_server(tmp_path / "data") as postgres:
        create_tables(postgres)
        Workload(postgres, Random(1), alters=False).run(40)
        MirrorStream(settings(postgres, mirror, **iceberg)).begin()
        for statement in DDL:
            postgres.execute(statement)
        run_once(session, postgres, mirror, **iceberg)
        tables = (*MIRRORED, "shop.newer", "shop.renamed", "shop.parts_w")
        for table in tables:
            if table not in ("shop.items", "shop.parts_s"):
                assert mirrored_rows(mirror, table) == rows_in_postgres(postgres, table), table
        assert_iceberg_tables(mirror)
        version = Versions(open_store(str(mirror))).newest()
        assert version is not None
        names = {each.name for each in version.tables}
        assert {"shop.items", "shop.parts_s", "shop.tmp_x", "public.other"}.isdisjoint(names)
        (parts,) = postgres.execute("SELECT count(*) FROM shop.parts")[0]
        assert read_mirror(session, str(mirror), "shop.parts").count() == parts > 0
        (total,) = postgres.execute("SELECT sum(weight) FROM shop.orders")[0]
        frame = read_mirror(session, str(mirror), "shop.orders")
        assert frame.selectExpr("sum(weight)").collect()[0][0] == total
        postgres.execute("ALTER TABLE shop.tmp_x RENAME TO wanted")
        with pytest.raises(StreamingQueryException, match=r"shop\.wanted at .* is now one of"):
            run_once(session, postgres, mirror, **iceberg)
        assert Versions(open_store(str(mirror))).newest() == version


DDL = (
    "ALTER TABLE shop.orders ADD weight int DEFAULT 7",
    "UPDATE shop.orders SET weight = 8, note = 'heavy' WHERE id % 2 = 0",
    "ALTER TABLE shop.orders RENAME note TO remark",
    "ALTER TABLE shop.orders DROP raw, ADD extra text",
    "INSERT INTO shop.orders (id, state, remark, extra) VALUES (1000, 'new', 'x', 'y')",
    "ALTER TYPE shop.state RENAME VALUE 'new' TO 'open'",
    "ALTER TYPE shop.state ADD VALUE 'lost' BEFORE 'paid'",
    "ALTER TABLE shop.orders ALTER total TYPE numeric(14, 2)",
    "INSERT INTO shop.orders (id, state, total) VALUES (1001, 'lost', 123456789012.25)",
    "ALTER TABLE shop.orders ALTER id TYPE bigint",
    "VACUUM FULL shop.orders",
    "UPDATE shop.orders SET id = id + 5000 WHERE id < 20",
    "CREATE TABLE shop.newer (a int PRIMARY KEY, b text)",
    "INSERT INTO shop.newer SELECT i, 'b' || i FROM generate_series(1, 300) i",
    "TRUNCATE shop.newer",
    "INSERT INTO shop.newer VALUES (1, 'after'), (2, NULL)",
    "ALTER TABLE shop.newer ADD UNIQUE (b)",
    "CREATE TABLE shop.tmp_x (a int PRIMARY KEY)",
    "INSERT INTO shop.tmp_x VALUES (1)",
    "ALTER TABLE shop.items RENAME TO renamed",
    "UPDATE shop.renamed SET amount = -1",
    "CREATE TABLE shop.parts_w PARTITION OF shop.parts FOR VALUES IN ('w')",
    "INSERT INTO shop.parts VALUES (1, 'w', 1), (2, 'w', 2)",
    "DELETE FROM shop.parts_w WHERE id = 2",
    "DROP TABLE shop.parts_s",
    "INSERT INTO public.other VALUES (12345)",
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--format", "iceberg", "--into", "memory://"), 'Iceberg tables cannot be in "memory://"'),
        ((), "there is no mirror in"),
        (("--table", "orders"), 'the pattern "orders" has no schema'),
        (("--option", "on_unknown=pass"), "option on_unknown is not for a mirror"),
        (("--from-backup",), "--from-backup needs --path"),
        (("--from-backup", "--dsn", "dbname=postgres"), "has 0 timelines"),
        (("--dsn", "host=127.0.0.1 port=1"), "could not connect for the initial snapshot"),
    ],
)
def test_wrong_options_end_it_in_one_sentence(
    server_wal: Path, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    where = ("--into", tmp_path / "mirror", "--path", server_wal)
    ended = run_sk("spark", "mirror", *where, *arguments, timeout=TIMEOUT)
    assert ended.returncode != 0
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "mirror" / "_mirror").exists()


def test_a_server_that_was_promoted_apart_from_the_wal(
    wal_server: Callable[..., Postgres], tmp_path: Path
) -> None:
    """Its rows look as if the WAL continued them."""
    with wal_server(tmp_path / "data") as postgres:
        create_tables(postgres)
        copy = tmp_path / "wal"
        postgres.execute("SELECT pg_switch_wal()")
        shutil.copytree(postgres.pg_wal, copy)
        postgres.stop()
        (postgres.data_dir / "standby.signal").touch()
        postgres.start()
        postgres.execute("SELECT pg_promote()")
        wanted = replace(settings(postgres, tmp_path / "mirror"), source={"path": str(copy)})
        with pytest.raises(MirrorError, match="is on timeline 2, the WAL ends on timeline 1"):
            MirrorStream(wanted).begin()
        assert MirrorStream(settings(postgres, tmp_path / "mirror")).begin()[1]


def test_a_mirror_keeps_its_tables(wal_server: Callable[..., Postgres], tmp_path: Path) -> None:
    with wal_server(tmp_path / "data") as postgres:
        wanted = settings(postgres, tmp_path / "mirror")
        with pytest.raises(MirrorError, match=r'no table matches "shop\.\*"'):
            MirrorStream(wanted).begin()
        create_tables(postgres)
        assert MirrorStream(wanted).begin()[1]
        assert not MirrorStream(replace(wanted, dsn=None)).begin()[1]
        with pytest.raises(MirrorError, match="is another mirror"):
            MirrorStream(replace(wanted, selection=Selection())).begin()
