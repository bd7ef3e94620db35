"""A table with a column of each of some types, filled by a real server, and its log."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import psycopg
from changed_logs import ChangedLog
from composed_values import Make, array_of, or_null
from decoding import Row, read_all
from pgoutput import exact_json

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.inputs.folder_input import FolderInput

ROWS = 40
NAME = "public.composed"
#: types that have no array of expressions
WITHOUT_ARRAY = {"int2vector", "oidvector"}
#: types that are JSON in a typed column
AS_JSON = {"pair", "grown", "nothing", "whole_pair", "nested", "some_row", "hstore"}
AS_JSON |= WITHOUT_ARRAY


def run(connection: psycopg.Connection[Any], statement: str) -> list[tuple[Any, ...]]:
    done = connection.execute(statement)  # type: ignore[arg-type]
    return done.fetchall() if done.description else []


def fill(
    connection: psycopg.Connection[Any], types: Mapping[str, Make], rng: random.Random
) -> dict[str, str]:
    """Creates the table, with an array of each type, too. Returns column -> type."""
    makes = {f"v{number}": (name, make) for number, (name, make) in enumerate(types.items())}
    makes |= {
        f"a{number}": (f"{name}[]", array_of(name, make))
        for number, (name, make) in enumerate(types.items())
        if name not in WITHOUT_ARRAY
    }
    columns = ", ".join(f"{column} {name}" for column, (name, _) in makes.items())
    run(connection, f"CREATE TABLE {NAME} (id int PRIMARY KEY, {columns})")
    run(connection, f"ALTER TABLE {NAME} REPLICA IDENTITY FULL")
    for number in range(ROWS):
        values = ", ".join(or_null(make)(rng) for _, make in makes.values())
        run(connection, f"INSERT INTO {NAME} VALUES ({number}, {values})")
    return {column: name for column, (name, _) in makes.items()}


def printed(connection: psycopg.Connection[Any], table: str) -> list[str]:
    """All rows as row_to_json() prints them."""
    query = f"SELECT row_to_json(t)::text FROM {table} t ORDER BY id"
    return [text for (text,) in run(connection, query)]


def printed_as_types(
    connection: psycopg.Connection[Any], types: Mapping[str, str]
) -> list[dict[str, Any]]:
    """All rows as typed columns have them."""
    columns = {"id": "id"} | {
        column: f"to_json({column})::text"
        if name.endswith("[]") or name in AS_JSON
        else f"{column}::{'numeric' if name == 'money' else 'text'}"
        for column, name in types.items()
    }
    rows = run(connection, f"SELECT {', '.join(columns.values())} FROM {NAME} ORDER BY id")
    return [dict(zip(columns, row, strict=True)) for row in rows]


def stopped(postgres: Postgres, begin_lsn: int) -> ChangedLog:
    """The server's WAL, and its catalog as it is read from a file."""
    taken = Catalog.from_json(take_catalog(postgres.dsn()).to_json(), "taken")
    postgres.stop()
    wal_input = FolderInput(str(postgres.pg_wal))
    return ChangedLog(wal_input, begin_lsn, wal_input.newest_lsn(), (taken, taken), [])


def rows_of(log: ChangedLog, name: str, operation: str, **options: Any) -> list[Row]:
    """Of one table, which must all be decoded."""
    rows = [
        row
        for row in read_all(log, **options)
        if (row["operation"], f"{row['schema']}.{row['table']}") == (operation, name)
    ]
    assert {row["detail"] for row in rows} <= {None}
    return rows


def assert_same(found: list[str], expected: list[str]) -> None:
    """Names the column, and then compares the texts."""
    for one, other in zip(found, expected, strict=True):
        values = exact_json(one)
        for name, value in exact_json(other).items():
            assert values[name] == value, name
        assert one == other
