"""A table out of the layers is what a full copy has that was replayed up to the same moment."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from table_world import CHECKSUMS_MAJOR, CountedBase, LackingBase, TableWorld

from pageserver.errors import PageNotFound, PageserverError, SurveyError, TableIncomplete
from pageserver.pitr.catalog_files import DatabaseCatalogs
from pageserver.pitr.restored_table import DumpFormat, RestoredDatabase
from pageserver.pitr.sparse_restore import SparseRestore
from pageserver.pitr.table_name import TableName
from pg_fixtures.postgres import Postgres
from pg_server.binaries import PostgresBinaries, all_postgres
from pgwal.segment import parse_segment_name

VERSIONS = pytest.mark.parametrize("binaries", all_postgres(), ids=lambda found: str(found.major))
#: Where no version differs.
ONE_VERSION = pytest.mark.parametrize(
    "binaries", all_postgres()[:1], ids=lambda found: str(found.major)
)
#: How often the WAL is replayed: once more for what only the server knows, as new names are.
#: With the query for its rows, and what is in its dump beside itself.
TABLES = {
    "shop.public.orders": (1, "TABLE orders", ()),
    "shop.public.rewritten": (1, "TABLE rewritten", ()),
    "shop.public.emptied": (1, "TABLE emptied", ()),
    "shop.public.in_flight": (1, "TABLE in_flight", ()),
    "shop.public.new_name": (2, "TABLE new_name", ()),
    "shop.public.parts": (
        2,
        "TABLE parts_1 UNION ALL SELECT k, t FROM parts_2",
        ("parts_1", "parts_2"),
    ),
    "shop.public.short_life": (1, "TABLE short_life", ()),
    "shop.public.neighbour": (1, "TABLE neighbour", ()),
    "shop.public.held": (1, "TABLE held", ()),
    "shop.public.placed": (1, "TABLE placed", ()),
    "shop.public.summed": (1, "TABLE summed", ()),
    "other.public.here": (2, "TABLE here", ()),
    "new_database.public.here": (2, "TABLE here", ()),
}

Worlds = Callable[[PostgresBinaries], TableWorld]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Made when it is asked for, once."""

    @cache
    def make(binaries: PostgresBinaries) -> TableWorld:
        root = tmp_path_factory.mktemp("tables")
        root.chmod(0o755)
        return TableWorld(binaries, root)

    return make


@pytest.fixture(scope="module")
def fulls(worlds: Worlds) -> Iterator[Callable[[PostgresBinaries], Postgres]]:
    with ExitStack() as servers:
        yield cache(lambda binaries: servers.enter_context(worlds(binaries).full()))


@pytest.fixture
def world(worlds: Worlds, binaries: PostgresBinaries) -> TableWorld:
    return worlds(binaries)


@pytest.fixture
def full(fulls: Callable[[PostgresBinaries], Postgres], binaries: PostgresBinaries) -> Postgres:
    return fulls(binaries)


@pytest.fixture
def restore(world: TableWorld, tmp_path: Path) -> SparseRestore:
    tmp_path.chmod(0o755)
    return SparseRestore(tmp_path, world.world.server)


def statements(text: str) -> list[str]:
    """Without the key that each run of pg_dump draws anew."""
    return [line for line in text.splitlines() if "restrict " not in line]


@VERSIONS
@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_that_of_a_full_copy(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path, name: str
) -> None:
    table = TableName.parse(name)
    rounds, query, more = TABLES[name]
    with restore.table(world.point(), table) as restored:
        restored.dump(tmp_path / "dump.sql")
        restored.copy_csv(tmp_path / "rows.csv")
        assert restored.rounds == rounds
    database = f"--dbname={table.database}"
    tables = [f"--table=public.{each}" for each in (table.table, *more)]
    expected = full.client("pg_dump", database, *tables)
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)
    rows = full.client("psql", "--no-psqlrc", "--csv", database, f"--command={query}")
    assert (tmp_path / "rows.csv").read_text() == rows
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dump.sql", "rows.csv"]


@VERSIONS
def test_a_database_that_was_copied_behind_the_cut(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    with restore.database(world.point(), "made") as restored:
        restored.dump(tmp_path / "dump.sql")
        with pytest.raises(PageserverError, match="exists"):
            restored.dump(tmp_path / "dump.sql")
    expected = full.client("pg_dump", "--dbname=made")
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)


@VERSIONS
def test_a_big_neighbour_is_not_read_and_the_wal_not_written(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    before = wal_digests(world)
    base = CountedBase(world.world.stack())
    with restore.table(world.point(base), TableName.parse("shop.public.quiet")) as restored:
        restored.dump(tmp_path / "dump", DumpFormat.CUSTOM)
        count = restored.copy_csv(tmp_path / "rows.csv")
    assert wal_digests(world) == before
    assert (tmp_path / "rows.csv").read_bytes().count(b"\n") == count + 1 == 5001
    assert "TABLE DATA public quiet" in full.client("pg_restore", "--list", tmp_path / "dump")
    (neighbour, pages), (quiet, quiet_pages) = world.files["neighbour"], world.files["quiet"]
    counts = {fork.number: count for fork, count in base.counts.items() if not fork.kind}
    assert pages > 700
    assert neighbour not in counts
    assert counts[quiet] == quiet_pages


def wal_digests(world: TableWorld) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in world.world.wal_dir.iterdir()
    }


@ONE_VERSION
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
    "binaries",
    [each for each in all_postgres() if each.major != CHECKSUMS_MAJOR][:1],
    ids=lambda found: str(found.major),
)
def test_pages_that_the_replay_misses_are_no_short_table(
    world: TableWorld, restore: SparseRestore
) -> None:
    """Planted: in files of the set, Postgres is told to ignore them as in all others."""
    table = TableName.parse("shop.public.neighbour")
    lacking = LackingBase(world.world.stack(), world.files["neighbour"][0])
    refused = pytest.raises(TableIncomplete, match="neighbour")
    with refused, restore.table(world.point(lacking), table):
        raise AssertionError("a short table is handed out")
    with restore.table(world.point(), TableName.parse("shop.public.quiet")) as restored:
        assert restored.rounds == 1


@ONE_VERSION
@pytest.mark.parametrize(
    ("name", "error", "hint"),
    [
        (
            "shop.public.order",
            'table "public"."order" does not exist in database "shop" at',
            "public.orders",
        ),
        ("shp.public.orders", 'database "shp" does not exist at', "shop"),
        ("old_database.public.here", 'database "old_database" does not exist at', "new_database"),
    ],
)
def test_a_name_that_is_not_there(
    world: TableWorld, restore: SparseRestore, name: str, error: str, hint: str
) -> None:
    table = TableName.parse(name)
    with pytest.raises(PageNotFound, match=error) as raised, restore.table(world.point(), table):
        raise AssertionError("handed out")
    assert hint in raised.value.hint


@ONE_VERSION
def test_what_is_no_table(full: Postgres, tmp_path: Path) -> None:
    database = RestoredDatabase(full.binaries, full.dsn(dbname="shop"))
    for name, error in {
        "shop.public.old_name": "does not exist in database",
        "shop.public.looked_at": "is a view",
        "shop.public.orders_id_seq": "is a sequence",
    }.items():
        with pytest.raises(PageNotFound, match=error):
            database.resolve(TableName.parse(name), "0/1")
    odd = database.resolve(TableName.parse('shop."Odd.Name"."we""ird"'), "0/1")
    database.dump(odd, tmp_path / "odd.sql", DumpFormat.PLAIN)
    assert 'CREATE TABLE "Odd.Name"."we""ird"' in (tmp_path / "odd.sql").read_text()


@ONE_VERSION
def test_a_moment_that_is_not_there(world: TableWorld, restore: SparseRestore) -> None:
    table, point = TableName.parse("shop.public.orders"), world.point()
    early = replace(point, target_lsn=point.cut_lsn - 8)
    with pytest.raises(PageNotFound, match="is before the cut"), restore.table(early, table):
        raise AssertionError("handed out")
    for more_bytes in (16 << 20, 1 << 40):
        late = replace(point, target_lsn=point.target_lsn + more_bytes)
        refused = pytest.raises(SurveyError, match="could not read the WAL up to")
        with refused, restore.table(late, table):
            raise AssertionError("handed out")


@VERSIONS
def test_the_end_of_the_wal_is_a_moment(world: TableWorld, restore: SparseRestore) -> None:
    """No record lies behind it that a server could stop before."""
    table, point = TableName.parse("shop.public.quiet"), world.point()
    seg_size = point.wal.server.wal_seg_size
    last = max(path.name for path in world.world.wal_dir.glob("0*"))
    end_lsn = (parse_segment_name(last, seg_size).segno + 1) * seg_size
    with restore.table(replace(point, target_lsn=end_lsn), table) as restored:
        assert restored.family is not None


@ONE_VERSION
def test_a_base_backup_is_the_first_cut(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    with restore.table(world.point_of_base(), TableName.parse("shop.public.orders")) as restored:
        restored.dump(tmp_path / "dump.sql")
    expected = full.client("pg_dump", "--dbname=shop", "--table=public.orders")
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)


@ONE_VERSION
def test_the_cut_is_a_moment(world: TableWorld, restore: SparseRestore, tmp_path: Path) -> None:
    point = world.point()
    at_cut = replace(point, target_lsn=point.cut_lsn)
    with restore.table(at_cut, TableName.parse("shop.public.emptied")) as restored:
        assert restored.copy_csv(tmp_path / "rows.csv") == 3000
