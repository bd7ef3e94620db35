"""One snapshot of the catalog at the beginning, then DDL of all kinds between changes of rows."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from changed_logs import MIB, SETTINGS, ChangedLog
from decoding import Row, read
from ledger import Entry, Ledger, assert_rows

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries, find_postgres
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.schema_search import SchemaSearch
from quorum_wal.spark.changes.undecoded_rows import UndecodedPolicy
from quorum_wal.spark.errors import CatalogError, UndecodedChange
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import OnDamage

#: the catalogs of each version, and each level with two of the versions
LOGS = [(15, "logical"), (16, "replica"), (18, "logical"), (18, "replica")]
#: for what does not depend on the version
TWO_LOGS = [(15, "logical"), (18, "replica")]


def name_of(log: tuple[int, str]) -> str:
    return f"{log[0]}-{log[1]}"


SETUP = """
CREATE SCHEMA shop;
CREATE TYPE shop.mood AS ENUM ('sad', 'happy');
CREATE TABLE shop.orders (id int PRIMARY KEY, item text NOT NULL, price numeric(10, 2));
CREATE TABLE shop.people (id int PRIMARY KEY, mood shop.mood, moods shop.mood[], note text);
CREATE TABLE shop.parts (id int, day date, v text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
CREATE TABLE shop.parts_1 PARTITION OF shop.parts FOR VALUES FROM ('2024-01-01') TO ('2024-02-01');
CREATE TABLE shop.single (id int PRIMARY KEY, day date NOT NULL, v text);
CREATE TABLE shop.gone (id int PRIMARY KEY, v text);
CREATE TABLE shop.early (id int PRIMARY KEY, v text);
"""


@dataclass(frozen=True, slots=True)
class DdlLog:
    """`catalog` is of the beginning, `last` of the end."""

    log: ChangedLog
    catalog: Catalog
    last: Catalog
    entries: list[Entry]

    def read(self, begin_lsn: int | None = None, end_lsn: int | None = None) -> list[Row]:
        log = self.log
        return read(log, begin_lsn or log.begin_lsn, end_lsn or log.end_lsn, self.catalog)


def columns(ledger: Ledger) -> None:
    ledger.insert("shop.orders", "VALUES (1, 'pen', 1.50), (2, 'ink', NULL)")
    ledger.do("ALTER TABLE shop.orders ADD COLUMN amount int")
    ledger.insert("shop.orders", "VALUES (3, 'nib', 2, 7)")
    ledger.do(
        "ALTER TABLE shop.orders ADD COLUMN at timestamptz DEFAULT '2024-05-06 07:08:09+00',"
        " ADD COLUMN tags text[] DEFAULT '{a,\"b c\"}', ADD COLUMN d numeric DEFAULT 1.10"
    )
    ledger.update("shop.orders", "amount = 1 WHERE id = 1")
    ledger.do("ALTER TABLE shop.orders RENAME COLUMN item TO thing")
    ledger.update("shop.orders", "amount = 2 WHERE id < 3")
    ledger.do("ALTER TABLE shop.orders DROP COLUMN price")
    ledger.insert("shop.orders", "VALUES (4, 'cap', 9)")
    ledger.do("ALTER TABLE shop.orders ADD COLUMN price text DEFAULT 'none'")
    ledger.insert("shop.orders", "VALUES (5, 'cap', 9)")
    ledger.do("CHECKPOINT", "ALTER TABLE shop.orders ALTER COLUMN thing DROP NOT NULL")
    ledger.insert("shop.orders", "VALUES (6, NULL, 9)")
    ledger.delete("shop.orders", "id = 2")


def names(ledger: Ledger) -> None:
    ledger.do("ALTER TABLE shop.orders RENAME TO purchases")
    ledger.insert("shop.purchases", "VALUES (10, 'x', 1)")
    ledger.do("CREATE SCHEMA other; ALTER TABLE shop.purchases SET SCHEMA other")
    ledger.update("other.purchases", "amount = 11 WHERE id = 10")
    ledger.do("ALTER SCHEMA other RENAME TO another")
    ledger.update("another.purchases", "amount = 12 WHERE id = 10")
    ledger.do("ALTER TABLE another.purchases SET SCHEMA shop")
    ledger.do("ALTER TABLE shop.purchases RENAME TO orders")
    ledger.delete("shop.orders", "id = 10")


def tables(ledger: Ledger) -> None:
    ledger.insert("shop.gone", "VALUES (1, 'a')")
    ledger.do("DROP TABLE shop.gone", "CREATE TABLE shop.gone (v text, id bigint PRIMARY KEY)")
    ledger.insert("shop.gone", "VALUES ('b', 2)")
    ledger.fill("CREATE TABLE shop.made AS SELECT g AS id, 'made ' || g AS t"
                " FROM generate_series(1, 5) g", "shop.made")  # fmt: skip
    ledger.begin()
    ledger.do("CREATE TABLE shop.short (a int)")
    ledger.insert("shop.short", "VALUES (1), (2)")
    ledger.do("DROP TABLE shop.short")
    ledger.commit()
    ledger.do(
        "CREATE TEMP TABLE passing (a int); INSERT INTO passing VALUES (1); DROP TABLE passing",
        "CREATE UNLOGGED TABLE shop.light (id int PRIMARY KEY)",
        "INSERT INTO shop.light VALUES (1)",
        "CREATE MATERIALIZED VIEW shop.seen AS SELECT id FROM shop.made",
        "REFRESH MATERIALIZED VIEW shop.seen",
        "CREATE VIEW shop.all_made AS SELECT * FROM shop.made",
        "CREATE INDEX made_id ON shop.made (id)",
        "CREATE UNIQUE INDEX made_key ON shop.made (id)",
        "CREATE TABLE shop.child (more int) INHERITS (shop.made)",
        "ANALYZE shop.made", "VACUUM shop.made",
    )  # fmt: skip
    ledger.insert("shop.child", "VALUES (9, 'child', 1)")
    ledger.do("ALTER TABLE shop.made ADD COLUMN extra int DEFAULT 5")
    ledger.insert("shop.child", "VALUES (10, 'child', 1)")
    ledger.update("shop.child", "t = 'changed' WHERE id = 9")


def transactions(ledger: Ledger) -> None:
    ledger.begin()
    ledger.insert("shop.people", "VALUES (1, 'sad', '{sad,happy}', 'x')")
    ledger.do("ALTER TABLE shop.people ADD COLUMN age int DEFAULT 3")
    ledger.insert("shop.people", "VALUES (2, 'happy', NULL, 'y')")
    ledger.savepoint("a")
    ledger.do("ALTER TABLE shop.people RENAME note TO remark")
    ledger.insert("shop.people", "VALUES (3, 'happy', NULL, 'never')")
    ledger.rollback_to("a")
    ledger.insert("shop.people", "VALUES (4, 'happy', NULL, 'z', 7)")
    ledger.savepoint("b")
    ledger.do("ALTER TABLE shop.people DROP COLUMN age")
    ledger.do("RELEASE b")
    ledger.insert("shop.people", "VALUES (5, 'happy', NULL, 'last')")
    ledger.commit()
    ledger.begin()
    ledger.do("ALTER TABLE shop.people ADD COLUMN never int", "CREATE TABLE shop.never (a int)")
    ledger.insert("shop.never", "VALUES (1)")
    ledger.rollback()
    ledger.insert("shop.people", "VALUES (6, NULL, NULL, 'after')")
    ledger.begin()
    ledger.do("ALTER TABLE shop.people ADD COLUMN two int")
    ledger.do("CREATE TABLE shop.prepared (id int PRIMARY KEY)")
    ledger.insert("shop.prepared", "VALUES (1)")
    ledger.insert("shop.people", "VALUES (7, NULL, NULL, 'prepared', 2)")
    ledger.prepare("one")
    ledger.insert("shop.orders", "VALUES (20, 'between')")
    ledger.do("CREATE TABLE shop.middle (id int PRIMARY KEY)")
    ledger.commit_prepared("one")
    ledger.insert("shop.people", "VALUES (8, NULL, NULL, 'behind', 2)")
    ledger.insert("shop.middle", "VALUES (1)")


def types(ledger: Ledger) -> None:
    ledger.insert("shop.people", "VALUES (30, 'sad', '{sad}', '')")
    ledger.do("ALTER TYPE shop.mood ADD VALUE 'so so' BEFORE 'happy'")
    ledger.insert("shop.people", "VALUES (31, 'so so', '{so so,sad}', '')")
    ledger.do("ALTER TYPE shop.mood RENAME VALUE 'sad' TO 'blue'")
    ledger.insert("shop.people", "VALUES (32, 'blue', '{blue}', '')")
    ledger.do("CREATE DOMAIN shop.percent AS numeric(5, 2)", "CREATE TYPE shop.size AS ENUM ('S')")
    ledger.do("ALTER TABLE shop.people ADD share shop.percent, ADD size shop.size DEFAULT 'S'")
    ledger.insert("shop.people", "VALUES (33, 'blue', '{blue}', '', 1, 99.5, 'S')")
    ledger.update("shop.people", "note = 'old' WHERE id = 1")


def files(ledger: Ledger) -> None:
    ledger.do("CREATE TABLE shop.big (id int PRIMARY KEY, t text, gone int)")
    ledger.insert("shop.big", "SELECT g, (SELECT string_agg(md5((g * i)::text), '') FROM"
                  " generate_series(1, 200) i), 1 FROM generate_series(1, 3) g")  # fmt: skip
    ledger.do("ALTER TABLE shop.big DROP COLUMN gone")
    ledger.do("VACUUM FULL shop.big", "CLUSTER shop.big USING big_pkey")
    ledger.insert("shop.big", "VALUES (4, 'after cluster')")
    ledger.update("shop.big", "t = 'short' WHERE id = 1")
    ledger.truncate("shop.big")
    ledger.insert("shop.big", "VALUES (5, 'after truncate')")
    ledger.begin()
    ledger.insert("shop.big", "VALUES (6, 'before')")
    ledger.truncate("shop.big")
    ledger.insert("shop.big", "VALUES (7, 'behind')")
    ledger.commit()
    ledger.begin()
    ledger.truncate("shop.big")
    ledger.rollback()
    ledger.begin()
    ledger.do("CREATE TABLE shop.loaded (id int PRIMARY KEY)")
    ledger.insert("shop.loaded", "VALUES (1)")
    ledger.truncate("shop.loaded")
    ledger.insert("shop.loaded", "VALUES (2)")
    ledger.commit()
    ledger.begin()
    ledger.truncate("shop.loaded", "shop.big")
    ledger.fill("COPY shop.loaded FROM PROGRAM 'seq 300' (FREEZE)", "shop.loaded")
    ledger.insert("shop.big", "VALUES (7, 'again')")
    ledger.commit()
    ledger.do("REINDEX TABLE shop.big", "VACUUM FULL shop.orders")
    ledger.delete("shop.big", "id = 7")
    ledger.update("shop.orders", "amount = 50 WHERE id = 1")


def rewrites(ledger: Ledger) -> None:
    ledger.do("CREATE TABLE shop.num (id int PRIMARY KEY, v int, t text, gone int)")
    ledger.insert("shop.num", "SELECT g, g, repeat(md5(g::text), 100), 1 FROM"
                  " generate_series(1, 5) g")  # fmt: skip
    ledger.do("ALTER TABLE shop.num DROP gone")
    ledger.rewrite("ALTER TABLE shop.num ALTER v TYPE text", "shop.num")
    ledger.insert("shop.num", "VALUES (6, 'six')")
    ledger.rewrite("ALTER TABLE shop.num ALTER v TYPE bigint USING length(v), ADD w float8 DEFAULT"
                   " random()", "shop.num")  # fmt: skip
    ledger.update("shop.num", "v = 7 WHERE id = 6")
    ledger.do("ALTER TABLE shop.num ALTER t TYPE varchar")
    ledger.insert("shop.num", "VALUES (8, 8, 'varchar', 1.5)")
    ledger.begin()
    ledger.rewrite("ALTER TABLE shop.num ALTER v TYPE int", "shop.num")
    ledger.rollback()
    ledger.update("shop.num", "v = 9 WHERE id = 8")
    ledger.fill("ALTER TABLE shop.light SET LOGGED", "shop.light")
    ledger.insert("shop.light", "VALUES (2)")
    ledger.do("ALTER TABLE shop.light SET UNLOGGED", "INSERT INTO shop.light VALUES (3)")


def partitions(ledger: Ledger) -> None:
    ledger.insert("shop.parts", "VALUES (1, '2024-01-10', 'a')")
    ledger.insert("shop.single", "VALUES (2, '2024-02-10', 'b')")
    ledger.do("ALTER TABLE shop.single DROP CONSTRAINT single_pkey",
              "ALTER TABLE shop.parts ATTACH PARTITION shop.single"
              " FOR VALUES FROM ('2024-02-01') TO ('2024-03-01')")  # fmt: skip
    ledger.insert("shop.parts", "VALUES (3, '2024-02-11', 'c')")
    ledger.do("ALTER TABLE shop.parts ADD COLUMN w int DEFAULT 4")
    ledger.insert("shop.parts", "VALUES (4, '2024-02-12', 'd'), (5, '2024-01-12', 'd')")
    ledger.do("ALTER TABLE shop.parts DETACH PARTITION shop.single",
              "ALTER TABLE shop.parts DETACH PARTITION shop.parts_1 CONCURRENTLY")  # fmt: skip
    ledger.insert("shop.single", "VALUES (6, '2024-02-12', 'd')")
    ledger.update("shop.parts_1", "v = 'z' WHERE id = 1")
    ledger.do("CREATE TABLE shop.parts_2 PARTITION OF shop.parts DEFAULT")
    ledger.insert("shop.parts", "VALUES (7, '2025-02-12', 'd')")


def catalogs(ledger: Ledger) -> None:
    """The catalogs themselves get new files, and are followed there."""
    ledger.do("VACUUM FULL pg_catalog.pg_class", "VACUUM FULL pg_catalog.pg_attribute")
    ledger.do("ALTER TABLE shop.single ADD COLUMN c1 int DEFAULT 1")
    ledger.insert("shop.single", "VALUES (40, '2024-01-01')")
    for name in ("type", "enum", "namespace", "index", "inherits", "proc", "depend"):
        ledger.do(f"VACUUM FULL pg_catalog.pg_{name}")
    ledger.do("REINDEX TABLE pg_catalog.pg_class", "CHECKPOINT")
    ledger.do("ALTER TABLE shop.single ADD COLUMN c2 int DEFAULT 2",
              "ALTER TYPE shop.mood ADD VALUE 'new'", "CREATE SCHEMA fresh",
              "CREATE TABLE fresh.t (id int PRIMARY KEY)",
              "CREATE FUNCTION fresh.f() RETURNS int LANGUAGE sql AS 'SELECT 1'")  # fmt: skip
    ledger.insert("fresh.t", "VALUES (1)")
    ledger.insert("shop.single", "VALUES (41, '2024-01-01')")
    ledger.insert("shop.people", "VALUES (50, 'new', '{new}')")
    ledger.begin()
    ledger.do("CLUSTER pg_catalog.pg_class USING pg_class_oid_index")
    ledger.do("ALTER TABLE shop.single ADD COLUMN c3 int DEFAULT 3")
    ledger.insert("shop.single", "VALUES (42, '2024-01-01')")
    ledger.commit()
    ledger.do("ALTER TABLE shop.single DROP COLUMN c1")
    ledger.insert("shop.single", "VALUES (43, '2024-01-01')")
    ledger.do("VACUUM", "CREATE EXTENSION IF NOT EXISTS plpgsql", "CREATE TABLE fresh.u (id int)")
    ledger.insert("fresh.u", "VALUES (1)")


PARTS = (columns, names, tables, transactions, types, files, rewrites, partitions, catalogs)


def make_log(postgres: Postgres, parts: tuple[Callable[[Ledger], None], ...]) -> DdlLog:
    with postgres:
        for statement in SETUP.split(";\n"):
            postgres.execute(statement)
        early = open_before_the_snapshot(postgres)
        begin_lsn = int(postgres.flush_lsn())
        catalog = take_catalog(postgres.dsn())
        ledger = Ledger(postgres)
        commit_after_the_snapshot(early, ledger)
        for part in parts:
            part(ledger)
        last = take_catalog(postgres.dsn())
        ledger.connection.close()
        postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    log = ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), (catalog, catalog), [])
    return DdlLog(log, Catalog.from_json(catalog.to_json(), "again"), last, ledger.entries)


def open_before_the_snapshot(postgres: Postgres) -> Ledger:
    """A transaction and a prepared one with DDL, older than the last checkpoint."""
    early = Ledger(postgres)
    early.begin()
    early.do("CREATE TABLE shop.prepared_early (id int PRIMARY KEY, v text)")
    early.insert("shop.prepared_early", "VALUES (1, 'a')")
    early.prepare("early")
    early.begin()
    early.insert("shop.early", "VALUES (1, 'old')")
    early.do("ALTER TABLE shop.early RENAME v TO w", "ALTER TABLE shop.early ADD x int DEFAULT 5")
    early.insert("shop.early", "VALUES (2, 'new')")
    postgres.execute("CHECKPOINT")
    return early


def commit_after_the_snapshot(early: Ledger, ledger: Ledger) -> None:
    early.do("ALTER TABLE shop.early ADD y text DEFAULT 'y'")
    early.insert("shop.early", "VALUES (3, 'later')")
    early.commit()
    early.commit_prepared("early")
    early.connection.close()
    ledger.entries += early.entries
    ledger.update("shop.early", "x = 6 WHERE id = 1")
    ledger.insert("shop.prepared_early", "VALUES (2, 'b')")


@pytest.fixture(scope="module", params=LOGS, ids=name_of)
def ddl_log(
    request: pytest.FixtureRequest,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> DdlLog:
    major, wal_level = request.param
    with skip_if_unavailable():
        binaries = find_postgres(major)
    data_dir = tmp_path_factory.mktemp("ddl") / "data"
    data_dir.parent.chmod(0o755)
    settings = {**SETTINGS, "wal_level": wal_level, "checkpoint_timeout": "1h"}
    template = initdb_template(binaries, MIB)
    postgres = Postgres(
        binaries, data_dir, settings=settings, wal_seg_size=MIB, template=template
    )  # fmt: skip
    return make_log(postgres, PARTS)


def test_rows_are_those_of_the_ledger(ddl_log: DdlLog) -> None:
    assert_rows(ddl_log.read(), ddl_log.entries)


def test_definitions_come_before_the_rows_that_have_them(ddl_log: DdlLog) -> None:
    """A reader that knows the definitions at the beginning, and follows the rows of operation
    `schema`, knows the columns of each row."""
    shapes: dict[str, list[str]] = {}
    for row in ddl_log.read():
        name = f"{row['schema']}.{row['table']}"
        if row["operation"] == "schema":
            old, new = (json.loads(row[side] or "null") for side in ("old", "new"))
            if old:
                shapes.pop(f"{old['schema']}.{old['table']}", None)
            if new:
                assert f"{new['schema']}.{new['table']}" == name
                shapes[name] = [column["name"] for column in new["columns"]]
        elif row["new"] and name in shapes:
            assert list(json.loads(row["new"])) == [
                column for column in shapes[name] if column not in (row["unchanged"] or ())
            ], row


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


@pytest.mark.parametrize("ddl_log", TWO_LOGS, indirect=True, ids=name_of)
def test_any_split(ddl_log: DdlLog, rng: random.Random) -> None:
    log, whole = ddl_log.log, ddl_log.read()
    cuts = [log.begin_lsn, *sorted(rng.sample(range(log.begin_lsn, log.end_lsn), 4)), log.end_lsn]
    parts: list[Any] = []
    for begin_lsn, end_lsn in itertools.pairwise(cuts):
        parts += ddl_log.read(begin_lsn, end_lsn)
    assert parts == whole, cuts


@pytest.mark.parametrize("ddl_log", TWO_LOGS, indirect=True, ids=name_of)
def test_an_advanced_catalog_is_that_of_the_server(ddl_log: DdlLog) -> None:
    """At the end; and one of the middle is as good as the one of the beginning. A search goes on
    from one to the other."""
    log, last = ddl_log.log, ddl_log.last
    middle_lsn = (log.begin_lsn + log.end_lsn) // 2
    search, other = (SchemaSearch(log.wal_input, ddl_log.catalog, OnDamage.FAIL) for _ in range(2))
    middle = search.advance(middle_lsn, log.end_lsn).to_json()
    advanced = search.advance(log.end_lsn, log.end_lsn)
    assert advanced.to_json() == other.advance(log.end_lsn, log.end_lsn).to_json()
    assert advanced.tables == last.tables
    assert {oid: advanced.types[oid] for oid in last.types} == last.types
    again = Catalog.from_json(middle, "middle")
    rows = [row for row in ddl_log.read() if row["commit_lsn"] >= middle_lsn]
    assert read(log, middle_lsn, log.end_lsn, again) == rows


def test_a_change_that_cannot_be_followed_is_reported(
    postgres_factory: Callable[..., Postgres],
) -> None:
    """Without full-page images, the page of a catalog is not known."""
    postgres = postgres_factory(settings={**SETTINGS, "full_page_writes": False}, wal_seg_size=MIB)
    postgres.execute("CREATE TABLE t (id int, v text)")
    postgres.execute("CREATE TABLE u (id int)")
    postgres.execute("CHECKPOINT")
    begin_lsn = int(postgres.flush_lsn())
    catalog = take_catalog(postgres.dsn())
    postgres.execute("INSERT INTO t VALUES (1, 'x')")
    postgres.execute("DROP TABLE u")
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    end_lsn = wal_input.newest_lsn()
    log = ChangedLog(wal_input, begin_lsn, end_lsn, (catalog, catalog), [])
    rows = read(log, begin_lsn, end_lsn, catalog)
    notes = [row["detail"] for row in rows if row["operation"] == "unknown"]
    assert notes
    assert all("of a system catalog at" in note and "cannot be followed" in note for note in notes)
    with pytest.raises(UndecodedChange, match="cannot be followed"):
        read(log, begin_lsn, end_lsn, catalog, undecoded=UndecodedPolicy())
    with pytest.raises(CatalogError, match="the catalog cannot be advanced"):
        SchemaSearch(wal_input, catalog, OnDamage.FAIL).advance(end_lsn, end_lsn)
