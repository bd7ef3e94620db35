"""A catalog that does not fit the WAL: rows that it would show wrongly have a note.

What cannot be noticed: a catalog that names another type of the same length and the same legal
values, such as `oid` for `int`, unless a server has changed it (`test_alterations.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
from changed_logs import MIB, SETTINGS
from damage_law import Place, Row, assert_accounted, is_undecoded, place_of

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog, Column, Table
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions, read_changes
from quorum_wal.spark.changes.undecoded_rows import OnUnknown, UndecodedPolicy
from quorum_wal.spark.errors import CatalogError, UndecodedChange
from quorum_wal.spark.inputs.folder_input import FolderInput
from quorum_wal.spark.inputs.wal_reader import WalRange

PASS = UndecodedPolicy(OnUnknown.PASS)


@dataclass(frozen=True, slots=True)
class World:
    """`catalogs` are of before and after what the server did to its tables."""

    wal_input: FolderInput
    begin_lsn: int
    end_lsn: int
    catalogs: tuple[Catalog, Catalog]

    def read(self, catalog: Catalog, begin_lsn: int | None = None, **options: Any) -> list[Row]:
        wal_range = WalRange(begin_lsn or self.begin_lsn, self.end_lsn, self.end_lsn)
        changes = ChangeOptions(catalog, **{"undecoded": PASS, **options})
        batches = read_changes(self.wal_input, wal_range, changes)
        return [row for batch in batches for row in batch.to_pylist()]

    def truth(self) -> dict[Place, Row]:
        rows = self.read(self.catalogs[0].merged(self.catalogs[1]))
        return {place_of(row): row for row in rows if not is_undecoded(row)}


@pytest.fixture(scope="module", params=["logical", "replica"])
def world(
    request: pytest.FixtureRequest, initdb_template: Any, pg_binaries: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[World]:  # fmt: skip
    folder = tmp_path_factory.mktemp("catalogs")
    folder.chmod(0o755)
    settings = {**SETTINGS, "wal_level": request.param, "checkpoint_timeout": "1h"}
    postgres = Postgres(
        pg_binaries, folder / "data", settings=settings, wal_seg_size=MIB,
        template=initdb_template(pg_binaries, MIB),
    )  # fmt: skip
    with postgres:
        yield write_world(postgres)


def write_world(postgres: Postgres) -> World:
    for statement in (
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE TABLE t (id int PRIMARY KEY, s text NOT NULL, m mood, n bigint, d date)",
        "CREATE TABLE emptied (id int PRIMARY KEY)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "INSERT INTO emptied VALUES (0)",
        "CHECKPOINT",
    ):
        postgres.execute(statement)
    begin_lsn = int(postgres.flush_lsn())
    before = take_catalog(postgres.dsn())
    for number in range(5):
        postgres.execute(
            f"INSERT INTO t VALUES ({number}, 'text {number}', 'sad', {number}, now())"
        )
        postgres.execute(f"UPDATE t SET n = n + 1 WHERE id = {number}")
        postgres.execute(f"INSERT INTO other VALUES ({number})")
    postgres.execute("DELETE FROM t WHERE id = 4")
    postgres.execute("TRUNCATE emptied")
    postgres.execute("CREATE TABLE later (id int); CREATE INDEX ON later (id)")
    postgres.execute("INSERT INTO later VALUES (1)")
    after = take_catalog(postgres.dsn())
    before.rows = after.rows = None  # what a catalog lacks is not found in the WAL
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    return World(wal_input, begin_lsn, wal_input.newest_lsn(), (before, after))


def changed(catalog: Catalog, change: Callable[[Table], Table | None], **parts: Any) -> Catalog:
    """The catalog with other tables."""
    names = (
        "system_id", "version_major", "database_oid", "database_name", "lsn", "wal_level",
        "ignored", "older_files",
    )  # fmt: skip
    kept = {name: getattr(catalog, name) for name in names}
    tables = [table for table in map(change, catalog.tables) if table is not None]
    return Catalog(**{**kept, "tables": tables, "types": catalog.types.values(), **parts})


def columns(change: Callable[[list[Column]], list[Column]]) -> Callable[[Table], Table]:
    """Changes the columns of table t."""
    return lambda table: (
        replace(table, columns=tuple(change(list(table.columns)))) if table.name == "t" else table
    )


def retyped(column: Column, like: Column) -> Column:
    return replace(like, name=column.name)


WRONG: dict[str, Callable[[Catalog], Catalog]] = {
    "first column missing": lambda c: changed(c, columns(lambda found: found[1:])),
    "middle column missing": lambda c: changed(c, columns(lambda f: [*f[:2], *f[3:]])),
    "last column missing": lambda c: changed(c, columns(lambda found: found[:-1])),
    "columns swapped": lambda c: changed(c, columns(lambda f: [f[1], f[0], *f[2:]])),
    "last columns swapped": lambda c: changed(c, columns(lambda f: [*f[:3], f[4], f[3]])),
    "text for a number": lambda c: changed(
        c, columns(lambda f: [*f[:3], retyped(f[3], f[1]), f[4]])
    ),
    "a number for text": lambda c: changed(
        c, columns(lambda f: [f[0], retyped(f[1], f[3]), *f[2:]])
    ),
    "table missing": lambda c: changed(c, lambda t: None if t.name == "t" else t),
    "type missing": lambda c: changed(
        c, lambda t: t, types=[each for each in c.types.values() if each.name != "mood"]
    ),
    "label missing": lambda c: changed(
        c,
        lambda t: t,
        types=[
            replace(each, labels={oid: s for oid, s in each.labels.items() if s != "sad"})
            for each in c.types.values()
        ],
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_catalog_that_is_wrong(world: World, kind: str) -> None:
    catalog = WRONG[kind](world.catalogs[0].merged(world.catalogs[1]))
    truth, found = world.truth(), world.read(catalog)
    assert_accounted(found, truth, kind)
    assert any(map(is_undecoded, found)), kind
    with pytest.raises(UndecodedChange):
        world.read(catalog, undecoded=UndecodedPolicy())


def test_another_table_is_not_concerned(world: World) -> None:
    """A file of another table is not; a file that no catalog has may be this table's."""
    catalog = WRONG["middle column missing"](world.catalogs[0].merged(world.catalogs[1]))
    options = {"table": catalog.table_named("public.other"), "undecoded": UndecodedPolicy()}
    assert [row["new"] for row in world.read(catalog, **options)] == [{"id": n} for n in range(5)]
    older = world.catalogs[0]
    with pytest.raises(UndecodedChange, match="which the catalog does not have"):
        world.read(older, **{**options, "table": older.table_named("public.other")})
    found = world.read(older, table=older.table_named("public.other"))
    assert [row["table"] for row in found] == ["other"] * 5 + [None]


def test_a_truncate_is_not_lost(world: World) -> None:
    """With wal_level replica it is not in the WAL, and its new file is not in the old catalog."""
    found = world.read(world.catalogs[0])
    logical = world.catalogs[0].wal_level == "logical"
    (row,) = [row for row in found if row["table"] == "emptied"]
    assert row["operation"] == ("truncate" if logical else "unknown")


def test_a_truncate_of_a_table_that_the_catalog_does_not_have(world: World) -> None:
    """With wal_level replica, only its file is in the WAL."""
    both = world.catalogs[0].merged(world.catalogs[1])
    catalog = changed(both, lambda table: None if table.name == "emptied" else table)
    notes = [row["detail"] for row in world.read(catalog) if row["operation"] == "unknown"]
    count = sum("was truncated: take a new catalog" in note for note in notes)
    assert count == (1 if both.wal_level == "logical" else 0)
    other = catalog.table_named("public.other")
    assert not any(
        "was truncated" in (row["detail"] or "") for row in world.read(catalog, table=other)
    )


def test_a_catalog_of_another_cluster(world: World) -> None:
    catalog = changed(world.catalogs[0], lambda table: table, system_id=1)
    with pytest.raises(CatalogError, match="the catalog is of system identifier 1"):
        world.read(catalog)
