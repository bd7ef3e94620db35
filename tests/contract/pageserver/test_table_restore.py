"""A table out of the layers is what a full copy has that was replayed up to the same moment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from table_world import CountedBase, TableWorld

from pageserver.catalog_files import DatabaseCatalogs
from pageserver.errors import PageNotFound, SurveyError, TableIncomplete
from pageserver.restored_table import DumpFormat
from pageserver.sparse_restore import SparseRestore
from pageserver.table_name import TableName
from pg_fixtures.postgres import Postgres
from pg_server.binaries import all_postgres

#: Each with the tables that its dump must have.
TABLES = {
    "shop.public.orders": ["orders"],
    "shop.public.rewritten": ["rewritten"],
    "shop.public.quiet": ["quiet"],
    "shop.public.emptied": ["emptied"],
    "shop.public.in_flight": ["in_flight"],
    "shop.public.new_name": ["new_name"],
    "shop.public.parts": ["parts", "parts_1", "parts_2"],
    "shop.public.short_life": ["short_life"],
    "shop.public.held": ["held"],
    "other.public.here": ["here"],
    "new_database.public.here": ["here"],
}


@pytest.fixture(scope="module", params=all_postgres(), ids=lambda found: str(found.major))
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TableWorld]:
    root = tmp_path_factory.mktemp("tables")
    root.chmod(0o755)
    yield TableWorld(request.param, root)


@pytest.fixture(scope="module")
def full(world: TableWorld) -> Iterator[Postgres]:
    with world.full() as server:
        yield server


@pytest.fixture
def restore(world: TableWorld, tmp_path: Path) -> SparseRestore:
    tmp_path.chmod(0o755)
    return SparseRestore(tmp_path, world.world.server)


def statements(text: str) -> list[str]:
    """Without the key that each run of pg_dump draws anew."""
    return [
        line for line in text.splitlines() if not line.startswith(("\\restrict", "\\unrestrict"))
    ]


@pytest.mark.parametrize("name", TABLES)
def test_a_dump_is_that_of_a_full_copy(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path, name: str
) -> None:
    table = TableName.parse(name)
    with restore.table(world.point(), table) as restored:
        restored.dump(tmp_path / "dump.sql")
    tables = [f"--table=public.{each}" for each in TABLES[name]]
    expected = full.client("pg_dump", f"--dbname={full.dsn(dbname=table.database)}", *tables)
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)
    assert [path.name for path in tmp_path.iterdir()] == ["dump.sql"]


def test_the_wal_is_only_read(world: TableWorld, restore: SparseRestore) -> None:
    def digests() -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in world.world.wal_dir.iterdir()
        }

    before = digests()
    with restore.table(world.point(), TableName.parse("shop.public.emptied")):
        pass
    assert digests() == before


def test_rows_as_csv(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    for name, query in {
        "parts": "SELECT * FROM parts_1 UNION ALL SELECT k, t FROM parts_2",
        "summed": "SELECT * FROM summed",
    }.items():
        with restore.table(world.point(), TableName.parse(f"shop.public.{name}")) as restored:
            count = restored.copy_csv(tmp_path / f"{name}.csv")
            restored.dump(tmp_path / name, DumpFormat.CUSTOM)
        with full.connect(dbname="shop") as connection, connection.cursor() as cursor:
            with cursor.copy(f"COPY ({query}) TO STDOUT (FORMAT csv, HEADER)") as copy:
                expected = b"".join(bytes(piece) for piece in copy)
        assert (tmp_path / f"{name}.csv").read_bytes() == expected
        assert count == expected.count(b"\n") - 1
        assert name in full.client("pg_restore", "--list", tmp_path / name)


def test_a_database_that_was_copied_behind_the_cut(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    with restore.database(world.point(), "made") as restored:
        restored.dump(tmp_path / "dump.sql")
    expected = full.client("pg_dump", f"--dbname={full.dsn(dbname='made')}")
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)


def test_a_big_neighbour_is_not_read(world: TableWorld, restore: SparseRestore) -> None:
    base = CountedBase(world.world.stack())
    with restore.table(world.point(base), TableName.parse("shop.public.quiet")):
        pass
    (neighbour, pages), (quiet, quiet_pages) = world.files["neighbour"], world.files["quiet"]
    counts = {fork.number: count for fork, count in base.counts.items() if not fork.kind}
    assert pages > 700
    assert neighbour not in counts
    assert counts[quiet] == quiet_pages


@pytest.mark.parametrize("left_out", ["quiet", "parts_1", "pg_attrdef"])
def test_a_file_that_is_left_out_is_no_short_table(
    world: TableWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """Planted: the guess lacks a file, and there is no second round."""
    guess = DatabaseCatalogs.table_numbers

    def short(catalogs: DatabaseCatalogs, name: TableName) -> frozenset[tuple[int, int]]:
        number, _ = world.files[left_out]
        return frozenset(each for each in guess(catalogs, name) if each[1] != number)

    monkeypatch.setattr(DatabaseCatalogs, "table_numbers", short)
    table = TableName.parse(f"shop.public.{'parts' if left_out == 'parts_1' else 'quiet'}")
    tmp_path.chmod(0o755)
    once = SparseRestore(tmp_path, world.world.server, rounds_max=1)
    with pytest.raises(TableIncomplete, match=left_out), once.table(world.point(), table):
        raise AssertionError("a short table is handed out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "error", "hint"),
    [
        ("shop.public.order", 'no table "public"."order" in database "shop"', "public.orders"),
        ("shop.public.old_name", 'no table "public"."old_name"', "public.new_name"),
        ("shop.public.looked_at", "is a view", "Name a table"),
        ("shp.public.orders", 'no database "shp"', "shop"),
        ("old_database.public.here", 'no database "old_database"', "new_database"),
    ],
)
def test_a_name_that_is_not_there(
    world: TableWorld, restore: SparseRestore, name: str, error: str, hint: str
) -> None:
    table = TableName.parse(name)
    with pytest.raises(PageNotFound, match=error) as raised, restore.table(world.point(), table):
        raise AssertionError("handed out")
    assert hint in raised.value.hint


def test_a_moment_that_is_not_there(world: TableWorld, restore: SparseRestore) -> None:
    table, point = TableName.parse("shop.public.orders"), world.point()
    early = replace(point, target_lsn=point.cut_lsn - 8)
    with pytest.raises(PageNotFound, match="lies before the cut"), restore.table(early, table):
        raise AssertionError("handed out")
    for more_bytes in (16 << 20, 1 << 40):
        late = replace(point, target_lsn=point.target_lsn + more_bytes)
        with pytest.raises(SurveyError, match="cannot be replayed up to"):
            with restore.table(late, table):
                raise AssertionError("handed out")


def test_the_end_of_the_wal_is_a_moment(world: TableWorld, restore: SparseRestore) -> None:
    """No record lies behind it that a server could stop before."""
    table, point = TableName.parse("shop.public.quiet"), world.point()
    seg_size = point.wal.server.wal_seg_size
    end_lsn = -(-point.target_lsn // seg_size) * seg_size
    with restore.table(replace(point, target_lsn=end_lsn), table) as restored:
        assert restored.family is not None
