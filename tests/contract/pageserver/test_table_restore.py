"""A table from the layers equals that of a full copy replayed up to the same position."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pg_versions import oldest_and_newest
from table_world import CHECKSUMS_MAJOR, CountedBase, LackingBase, TableWorld

from quorum_wal.pageserver.errors import PageNotFound, PageserverError, TableIncomplete
from quorum_wal.pageserver.pitr.catalog_files import DatabaseCatalogs
from quorum_wal.pageserver.pitr.dump_roles import DumpRoles
from quorum_wal.pageserver.pitr.restored_table import DumpFormat, RestoredDatabase
from quorum_wal.pageserver.pitr.sparse_restore import SparseRestore
from quorum_wal.pageserver.pitr.table_name import TableName
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries, all_postgres
from quorum_wal.pgwal.segment import parse_segment_name

#: Where the versions do not differ.
ONE_VERSION = pytest.mark.parametrize(
    "binaries", all_postgres()[:1], ids=lambda found: str(found.major)
)
NEWEST_VERSION = pytest.mark.parametrize(
    "binaries", oldest_and_newest()[-1:], ids=lambda found: str(found.major)
)
#: How many times the WAL is replayed: twice if only the server knows the files, as with new names.
#: With the query for its rows, and what else its dump contains.
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

#: Tables whose files are found in ways that depend on the version: new files of a table and of the
#: catalogs, an open transaction, values out of line. Of the others, each version restores half.
OF_ALL_VERSIONS = ("orders", "rewritten", "in_flight", "parts")


def tables_of_versions() -> list[Any]:
    """Names of tables, each with one version of Postgres or with two."""
    versions, chosen = oldest_and_newest(), []
    for number, name in enumerate(TABLES):
        is_of_all = name.rpartition(".")[2] in OF_ALL_VERSIONS or len(versions) == 1
        for binaries in versions if is_of_all else [versions[number % 2]]:
            chosen.append(pytest.param(binaries, name, id=f"{name}-{binaries.major}"))
    return chosen


Worlds = Callable[[PostgresBinaries], TableWorld]


@pytest.fixture(scope="module")
def worlds(tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Each created on first use."""

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
    """Removes the key that each run of pg_dump generates."""
    return [line for line in text.splitlines() if "restrict " not in line]


@pytest.mark.parametrize(("binaries", "name"), tables_of_versions())
def test_a_table_equals_that_of_a_full_copy(
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


@NEWEST_VERSION
def test_a_database_copied_after_the_cut(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    with restore.database(world.point(), "made") as restored:
        restored.dump(tmp_path / "dump.sql")
        with pytest.raises(PageserverError, match="exists"):
            restored.dump(tmp_path / "dump.sql")
    expected = full.client("pg_dump", "--dbname=made")
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)


@NEWEST_VERSION
def test_other_tables_are_not_read_and_the_wal_is_not_changed(
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
def test_a_missing_file_is_an_error(
    world: TableWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    """A planted error: the derived file set lacks a file, and there is no second round."""
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
def test_missing_pages_in_the_replay_are_an_error(
    world: TableWorld, restore: SparseRestore
) -> None:
    """A planted error: Postgres ignores missing pages in files of the set, too."""
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
def test_an_unknown_name_is_refused(
    world: TableWorld, restore: SparseRestore, name: str, error: str, hint: str
) -> None:
    table = TableName.parse(name)
    with pytest.raises(PageNotFound, match=error) as raised, restore.table(world.point(), table):
        raise AssertionError("handed out")
    assert hint in raised.value.hint


@ONE_VERSION
def test_other_relations_are_refused(full: Postgres, tmp_path: Path) -> None:
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
def test_the_roles_of_a_dump(full: Postgres) -> None:
    """Also of a column, a sequence, a partition; also the bootstrap superuser, which is pinned."""
    roles = ("owner", "of_part", "of_other", "reader", "of_column", "of_sequence", "of_function")
    full.execute("CREATE DATABASE roles")
    full.execute("; ".join(f"CREATE ROLE {role}" for role in roles))
    for statement in (
        "CREATE TABLE wanted (id serial, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF wanted FOR VALUES FROM (0) TO (9)",
        "CREATE TABLE other ()",
        "CREATE FUNCTION f() RETURNS int RETURN 1",
        "ALTER TABLE wanted OWNER TO owner",
        "ALTER TABLE part OWNER TO of_part",
        "ALTER TABLE other OWNER TO of_other",
        "GRANT SELECT ON part TO reader",
        "GRANT SELECT (v) ON wanted TO of_column",
        "GRANT USAGE ON SEQUENCE wanted_id_seq TO of_sequence",
        "GRANT EXECUTE ON FUNCTION f TO of_function",
    ):
        full.execute(statement, dbname="roles")
    database = RestoredDatabase(full.binaries, full.dsn(dbname="roles"))
    family = database.resolve(TableName.parse("roles.public.wanted"), "0/1")
    grantees = ("of_column", "of_sequence", "reader")
    assert database.roles(family) == DumpRoles(("of_part", "owner"), grantees)
    owners = ("of_other", "of_part", "owner", "postgres")
    assert database.roles(None) == DumpRoles(owners, tuple(sorted((*grantees, "of_function"))))


@NEWEST_VERSION
def test_a_restore_to_the_end_of_the_wal(world: TableWorld, restore: SparseRestore) -> None:
    """No record follows it at which a server could stop."""
    table, point = TableName.parse("shop.public.quiet"), world.point()
    seg_size = point.wal.server.wal_seg_size
    last = max(path.name for path in world.world.wal_dir.glob("0*"))
    end_lsn = (parse_segment_name(last, seg_size).segno + 1) * seg_size
    with restore.table(world.point(target_lsn=end_lsn), table) as restored:
        assert restored.family is not None


@ONE_VERSION
def test_a_restore_from_the_base_backup(
    world: TableWorld, full: Postgres, restore: SparseRestore, tmp_path: Path
) -> None:
    with restore.table(world.point_of_base(), TableName.parse("shop.public.orders")) as restored:
        restored.dump(tmp_path / "dump.sql")
    expected = full.client("pg_dump", "--dbname=shop", "--table=public.orders")
    assert statements((tmp_path / "dump.sql").read_text()) == statements(expected)


@ONE_VERSION
def test_a_restore_to_the_cut(world: TableWorld, restore: SparseRestore, tmp_path: Path) -> None:
    at_cut = world.point(target_lsn=world.cut.end_lsn)
    with restore.table(at_cut, TableName.parse("shop.public.emptied")) as restored:
        assert restored.copy_csv(tmp_path / "rows.csv") == 3000
