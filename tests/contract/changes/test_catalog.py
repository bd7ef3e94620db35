"""The catalog as it is taken, written and read again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from quorum_wal.cli.catalog import catalog as catalog_command
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog, load_catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.errors import CatalogError


@pytest.fixture
def tables(postgres_factory: Callable[..., Postgres]) -> Postgres:
    postgres = postgres_factory()
    for statement in (
        "CREATE TYPE mood AS ENUM ('sad', 'so \"so\"')",
        "CREATE TABLE t (b text, gone int, a int, m mood, x int[], PRIMARY KEY (a, b))",
        "INSERT INTO t VALUES ('x', 1, 1)",
        "ALTER TABLE t DROP COLUMN gone, ADD COLUMN d text DEFAULT 'q\" {,} \\ é'",
        "CREATE SCHEMA s; CREATE TABLE s.t (a int); CREATE TABLE s.u (a int UNIQUE NOT NULL)",
        "ALTER TABLE s.u REPLICA IDENTITY USING INDEX u_a_key",
    ):
        postgres.execute(statement)
    return postgres


def test_tables_and_types(tables: Postgres) -> None:
    taken = take_catalog(tables.dsn())
    table = taken.table_named("public.t")
    assert [column.name for column in table.columns if not column.is_dropped] == [
        "b", "a", "m", "x", "d",
    ]  # fmt: skip
    assert [table.columns[place].name for place in table.key] == ["a", "b"]
    assert table.columns[1].is_dropped
    assert table.columns[1].length == 4
    assert (table.columns[5].missing, table.columns[5].missing_json) == (
        'q" {,} \\ é',
        '"q\\" {,} \\\\ é"',
    )
    assert list(taken.types[table.columns[3].type_oid].labels.values()) == ["sad", 'so "so"']
    assert taken.types[table.columns[4].type_oid].of_oid == 23
    assert taken.lookup(taken.database_oid, table.toast_relfilenode) is table
    assert taken.lookup(taken.database_oid + 1, table.relfilenode) is None
    ((file,),) = tables.execute("SELECT pg_relation_filenode('pg_class')::bigint")
    assert taken.ignored[file] == "pg_catalog.pg_class"
    assert taken.table_named("u").key == (0,)


def test_ambiguous_and_missing_names(tables: Postgres) -> None:
    taken = take_catalog(tables.dsn())
    with pytest.raises(CatalogError, match='has more than one table "t"'):
        taken.table_named("t")
    with pytest.raises(CatalogError, match='has no table "nowhere"'):
        taken.table_named("nowhere")


def test_written_and_read_again(tables: Postgres, tmp_path: Path) -> None:
    path = tmp_path / "catalog.json"
    done = CliRunner().invoke(catalog_command, ["snapshot", "--dsn", tables.dsn(), "-o", str(path)])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("3 tables of postgres at ")
    found, taken = load_catalog(str(path)), take_catalog(tables.dsn())
    assert (found.tables, found.types, found.ignored) == (taken.tables, taken.types, taken.ignored)
    assert found.system_id == taken.system_id
    assert Catalog.from_json(found.to_json(), "again").to_json() == path.read_bytes()


def test_a_link_is_followed(tables: Postgres, tmp_path: Path) -> None:
    """As /dev/stdout is one: root would lose it."""
    path, link = tmp_path / "catalog.json", tmp_path / "link"
    link.symlink_to(path)
    done = CliRunner().invoke(catalog_command, ["snapshot", "--dsn", tables.dsn(), "-o", str(link)])
    assert done.exit_code == 0, done.output
    assert link.is_symlink()
    assert load_catalog(str(path)).tables == take_catalog(tables.dsn()).tables


def test_taken_from_a_standby(tables: Postgres, tmp_path: Path) -> None:
    standby = tables.base_backup(tmp_path / "standby", "--write-recovery-conf")
    with standby:
        assert take_catalog(standby.dsn()).tables == take_catalog(tables.dsn()).tables


def test_files_that_a_newer_one_forgot(tables: Postgres, tmp_path: Path) -> None:
    older = take_catalog(tables.dsn())
    tables.execute("TRUNCATE t")
    newer = take_catalog(tables.dsn())
    for name, each in (("older", older), ("newer", newer)):
        (tmp_path / name).write_bytes(each.to_json())
    both = load_catalog(f"{tmp_path / 'newer'}, {tmp_path / 'older'}")
    files = [each.table_named("public.t").relfilenode for each in (older, newer)]
    assert files[0] != files[1]
    for file in files:
        found = both.lookup(both.database_oid, file)
        assert found is not None
        assert str(found) == "public.t"
    assert both.table_named("public.t").relfilenode == files[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "cannot be read: Input data was truncated"),
        ('{"format": 2}', "has format 2, expected 1"),
        ('{"format": 1}', "Object missing required field"),
    ],
)
def test_file_that_is_no_catalog(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "catalog.json"
    path.write_text(text)
    with pytest.raises(CatalogError, match=message):
        load_catalog(str(path))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(CatalogError, match="No such file or directory"):
        load_catalog(str(tmp_path / "nowhere"))


def test_no_server() -> None:
    with pytest.raises(CatalogError, match="the catalog cannot be taken"):
        take_catalog("host=127.0.0.1 port=1")


def test_database_that_is_not_utf8(postgres_factory: Callable[..., Postgres]) -> None:
    postgres = postgres_factory()
    postgres.execute("CREATE DATABASE old ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    with pytest.raises(CatalogError, match="is encoded in LATIN1, expected UTF8"):
        take_catalog(postgres.dsn(dbname="old"))
