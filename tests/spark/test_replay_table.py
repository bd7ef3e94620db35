"""A table at a moment, from a base and its changes, equals the table in Postgres at that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pending_commit import PendingCommit

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.errors import CatalogError, UndecodedChange
from quorum_wal.spark.jobs import table_base
from quorum_wal.spark.jobs.replay_table import (
    families_of,
    is_unseen,
    replay_table,
    unreplayed,
)
from quorum_wal.spark.jobs.table_base import Snapshot, read_base, take_base

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TIMEOUT = 60.0
TABLE = "public.orders"
COLUMNS = (
    "SELECT id, region, amount, note, flag::text, at::text, tags::text, big FROM orders"
    " ORDER BY id, region"
)


@dataclass(frozen=True)
class World:
    """A stopped server, its base and catalog, and its table at two moments."""

    pg_wal: Path
    base: Path
    #: from before a TRUNCATE, without and with the rows of the system catalogs
    bare_catalog: str
    old_catalog: str
    #: from before and from behind it
    catalogs: str
    states: dict[str, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def world(
    wal_server: Callable[..., Postgres], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("replay")
    with wal_server(folder / "data", wal_level="logical") as postgres:
        _create(postgres)
        base, catalog, newer = (folder / name for name in ("base.parquet", "1.json", "2.json"))
        assert take_base(postgres.dsn(), TABLE, base) == 500
        old, bare = take_catalog(postgres.dsn()), folder / "bare.json"
        catalog.write_bytes(old.to_json())
        old.rows = None
        bare.write_bytes(old.to_json())
        states = {}
        for change in (_change_rows, _truncate):
            change(postgres)
            (lsn,) = postgres.execute("SELECT pg_current_wal_insert_lsn()::text")[0]
            states[lsn] = [tuple(row) for row in postgres.execute(COLUMNS)]
        newer.write_bytes(take_catalog(postgres.dsn()).to_json())
        postgres.execute("INSERT INTO orders (id, region) VALUES (99999, 'after the last moment')")
        catalogs = f"{catalog},{newer}"
        yield World(postgres.pg_wal, base, f"{bare}", f"{catalog}", catalogs, states)


def _create(postgres: Postgres) -> None:
    postgres.execute(
        "CREATE TABLE orders (id int, region text, amount numeric(10, 2), note text, flag bool,"
        " at timestamptz, tags int[], big text, PRIMARY KEY (id, region))"
    )
    postgres.execute("ALTER TABLE orders ALTER big SET STORAGE EXTERNAL")
    postgres.execute(
        "INSERT INTO orders SELECT i, 'north', i * 1.25, 'note \"' || i, i % 2 = 0, now(),"
        " ARRAY[i, i + 1], repeat(md5(i::text), 100) FROM generate_series(1, 500) i"
    )


def _change_rows(postgres: Postgres) -> None:
    """With out-of-line values that do not change, keys that change, and rollbacks."""
    postgres.execute("UPDATE orders SET amount = amount + 1 WHERE id % 3 = 0")
    postgres.execute("UPDATE orders SET region = 'süd' WHERE id % 50 = 0")
    postgres.execute("UPDATE orders SET id = -id, note = 'twice' WHERE region = 'süd'")
    postgres.execute("UPDATE orders SET note = NULL, big = 'small' WHERE id % 7 = 0")
    postgres.execute("DELETE FROM orders WHERE id % 11 = 0")
    with postgres.connect(autocommit=False) as connection:
        connection.execute("INSERT INTO orders (id, region) VALUES (1000, 'x')")
        connection.execute("SAVEPOINT inner_one")
        connection.execute("DELETE FROM orders")
        connection.execute("ROLLBACK TO inner_one")
        connection.execute("UPDATE orders SET flag = true WHERE id = 1000")
        connection.commit()
        connection.execute("DELETE FROM orders")
        connection.rollback()


def _truncate(postgres: Postgres) -> None:
    with postgres.connect(autocommit=False) as connection:
        connection.execute("UPDATE orders SET note = 'lost'")
        connection.execute("TRUNCATE orders")
        connection.execute("INSERT INTO orders (id, region, amount) VALUES (1, 'new', 0.01)")
        connection.commit()


def test_the_table_at_a_moment(session: SparkSession, world: World) -> None:
    for lsn, expected in world.states.items():
        frame = _replayed(session, world, world.catalogs, lsn)
        rows = sorted(tuple(row) for row in frame.collect())
        assert [_plain(row) for row in rows] == [_plain(row) for row in expected], lsn
    assert [len(state) for state in world.states.values()] == [456, 1]


def test_a_file_that_the_catalog_does_not_know_ends_it(session: SparkSession, world: World) -> None:
    """Unless the changes of the system catalogs are followed."""
    before, behind = world.states
    assert _replayed(session, world, world.bare_catalog, before).count() == 456
    assert _replayed(session, world, world.old_catalog, behind).count() == 1
    with pytest.raises(UndecodedChange, match="cannot be replayed on") as raised:
        _replayed(session, world, world.bare_catalog, behind)
    assert "newer catalog" in raised.value.hint


def _replayed(session: SparkSession, world: World, catalogs: str, end_lsn: str) -> Any:
    start_lsn = f"{read_base(world.base).lsn >> 32:X}/{read_base(world.base).lsn & 0xFFFFFFFF:X}"
    changes = session.read.format("pg_changes").options(
        path=str(world.pg_wal),
        catalog=catalogs,
        start_lsn=start_lsn,
        end_lsn=end_lsn,
        on_unknown="pass",
    )
    catalog = load_catalog(catalogs)
    table = catalog.table_named(TABLE)
    return replay_table(session, world.base, changes.load(), table, Datums(catalog.types)).frame


def _plain(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """In a common form: JSON writes times with a T and arrays with brackets."""
    id_, region, amount, note, flag, at, tags, big = row
    flag = flag if flag is None or isinstance(flag, bool) else flag == "true"
    at = at and at.replace("T", " ").replace("+00:00", "+00")
    tags = tags and tags.replace("{", "[").replace("}", "]")
    return id_, region, amount, note, flag, at, tags, big


def test_a_change_that_cannot_be_decoded_ends_it(session: SparkSession, world: World) -> None:
    schema = (
        "schema string, table string, xid bigint, operation string, detail string, lsn bigint,"
        " seq int, commit_lsn bigint, old string, new string"
    )
    table = load_catalog(world.catalogs).table_named(TABLE)
    for row in (
        ("public", "orders", 4_000_000, "update", "an old tuple is not in the WAL", 0x1000028, 0,
         0x1000100, None, None),
        (None, None, None, "unknown", "the WAL is lost", 0x1000028, Note.LOST_WAL.value,
         None, None, None),
    ):  # fmt: skip
        changes = session.createDataFrame([row], schema)
        with pytest.raises(UndecodedChange, match="at 0/1000028 cannot be replayed on"):
            replay_table(session, world.base, changes, table, Datums({}))


def test_who_was_seen_is_asked_of_the_snapshot(session: SparkSession) -> None:
    """Also where transaction ids have wrapped around."""
    cases = {
        Snapshot(100, 110, (100, 105)): {99: False, 100: True, 104: False, 105: True, 110: True},
        Snapshot((1 << 32) - 2, (1 << 32) + 5, ((1 << 32) - 2,)): {
            4294967293: False, 4294967294: True, 3: False, 5: True, 6: True,
        },
    }  # fmt: skip
    for snapshot, expected in cases.items():
        frame = session.createDataFrame([(xid,) for xid in expected], "xid bigint")
        found = {row.xid for row in frame.where(is_unseen(snapshot)).collect()}
        assert found == {xid for xid, unseen in expected.items() if unseen}


def test_keys_that_become_each_other_are_one_family() -> None:
    families = dict(families_of([("a", "b"), ("b", "c"), ("x", "y"), ("c", "a"), ("z", "y")]))
    assert set(families) == set("abcxyz")
    assert len({families[key] for key in "abc"}) == len({families[key] for key in "xyz"}) == 1
    assert families["a"] != families["x"]


def test_definitions_that_the_rows_of_a_base_do_not_fit() -> None:
    def definition(*columns: tuple[int, str, str], **more: Any) -> dict[str, Any]:
        names = ("number", "name", "type")
        parts = [dict(zip(names, column, strict=True)) for column in columns]
        return {"schema": "s", "table": "t", "columns": parts, **more}

    old = definition((1, "a", "int"), (2, "b", "int"))
    added = definition((1, "a", "int"), (2, "b", "int"), (3, "c", "int"))
    for new, reason in (
        (None, "the table was dropped"),
        ({**old, "table": "u"}, "the table was renamed to s.u"),
        (definition((1, "x", "int"), (2, "b", "int")), "column a was renamed to x"),
        (definition((1, "a", "text"), (2, "b", "int")), "the type of column a was changed to text"),
        (added, None),
        (definition((1, "a", "int")), None),
    ):
        assert unreplayed(old, new, is_rewritten=False) == reason
    added["columns"][2]["missing_value"] = 1
    assert unreplayed(old, added, is_rewritten=True) is None
    assert unreplayed(old, added, is_rewritten=False) == (
        "column c was added with a value for older rows"
    )


def test_what_is_no_base(tmp_path: Path) -> None:
    path = tmp_path / "base.parquet"
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(CatalogError, match="is not a base of a table"):
        read_base(path)


def test_a_base_waits_for_commits_that_wait_for_their_quorum(
    wal_server: Callable[..., Postgres], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_base, "WAIT_SECONDS", 0.5)
    with wal_server(tmp_path / "data") as postgres:
        postgres.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        postgres.configure(synchronous_standby_names="absent")
        commit = PendingCommit(postgres, "INSERT INTO orders VALUES (1)")
        commit.wait_blocked(TIMEOUT)
        with pytest.raises(CatalogError, match="has been running for more than"):
            take_base(postgres.dsn(), TABLE, tmp_path / "base.parquet")
        postgres.configure(synchronous_standby_names="")
        commit.wait_returned(TIMEOUT)
        assert take_base(postgres.dsn(), TABLE, tmp_path / "base.parquet") == 1


def test_a_base_of_a_standby_is_refused(
    wal_server: Callable[..., Postgres], tmp_path: Path, standby_factory: Callable[..., Postgres]
) -> None:
    """Its snapshots do not list the transactions that run."""
    with wal_server(tmp_path / "data") as postgres:
        standby = standby_factory(postgres, "standby", postgres.dsn())
        with pytest.raises(CatalogError, match="is a standby"):
            take_base(standby.dsn(), TABLE, tmp_path / "base.parquet")
