"""A server with tables of all shapes, and its tables compared with a mirror."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mirror_workload import TYPES

from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.spark.mirror.version import Version, Versions

TABLES = """
CREATE SCHEMA shop;
CREATE TYPE shop.state AS ENUM ('new', 'paid', 'sent');
CREATE TABLE shop.orders (
    id int PRIMARY KEY, state shop.state, total numeric(12, 2), note text, big text,
    at timestamptz DEFAULT now(), day date DEFAULT '2026-11-26', raw bytea, tags text[],
    doc jsonb, ratio float8, flag bool
);
ALTER TABLE shop.orders ALTER big SET STORAGE EXTERNAL;
CREATE TABLE shop.items (order_id bigint, name text, amount numeric, PRIMARY KEY (order_id, name));
CREATE TABLE shop.log (at timestamp, line text);
CREATE TABLE shop.parts (id int, region text, n int, PRIMARY KEY (id, region))
    PARTITION BY LIST (region);
CREATE TABLE shop.parts_n PARTITION OF shop.parts FOR VALUES IN ('n');
CREATE TABLE shop.parts_s PARTITION OF shop.parts FOR VALUES IN ('s');
CREATE TABLE public.other (id int PRIMARY KEY);
"""
NAMES = """
    SELECT relname FROM pg_class
     WHERE relnamespace = 'shop'::regnamespace AND relkind = 'r' AND relpersistence = 'p'
"""
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:")
_NUMBER = re.compile(r"-?[0-9.]{1,24}(e[-+]?\d+)?")


def create_tables(postgres: Postgres) -> None:
    for statement in (*TABLES.split(";\n"), *TYPES):
        if statement.strip():
            postgres.execute(statement)


def assert_equal(
    postgres: Postgres, url: Path | str, store_options: Mapping[str, str] | None = None
) -> None:
    """All tables of the schema that have WAL, and no others."""
    version = Versions(open_store(str(url), dict(store_options or {}))).newest()
    assert version is not None
    names = sorted(f"shop.{name}" for (name,) in postgres.execute(NAMES))
    assert sorted(each.name for each in version.tables if not each.is_partitioned) == names
    for name in names:
        assert mirrored_rows(url, name, version, store_options) == rows_in_postgres(
            postgres, name
        ), name


def rows_in_postgres(postgres: Postgres, table: str) -> list[str]:
    """The rows as JSON, sorted."""
    with postgres.connect() as connection:
        connection.execute("SET timezone = 'UTC'; SET lock_timeout = '60s'")
        found = connection.execute(f"SELECT row_to_json(t.*)::text FROM ONLY {table} t".encode())
        return sorted(_plain(json.loads(text, parse_float=str, parse_int=str)) for (text,) in found)


def mirrored_rows(
    url: Path | str,
    table: str,
    version: Version | None = None,
    store_options: Mapping[str, str] | None = None,
) -> list[str]:
    """The rows of the files of a version."""
    store = open_store(str(url), dict(store_options or {}))
    current = version or Versions(store).newest()
    assert current is not None
    found: list[str] = []
    for file in current.table(table).files:
        rows = pq.read_table(pa.BufferReader(store.get(file.path)))
        assert rows.num_rows == file.rows
        found += [_plain(row) for row in rows.to_pylist()]
    return sorted(found)


def _plain(row: dict[str, Any]) -> str:
    return json.dumps({name: _text(value) for name, value in row.items()}, sort_keys=True)


def _text(value: Any) -> Any:
    """One text for a value of JSON and of Parquet."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        with suppress(ValueError):  # a range
            return _text(json.loads(value, parse_float=str, parse_int=str))
    if isinstance(value, list | dict):
        return json.dumps(value)
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return "NaN" if value != value else f"{Decimal(repr(value)).normalize():f}"
    if isinstance(value, date):
        return value.isoformat()
    text = str(value)
    if _TIME.match(text):
        return datetime.fromisoformat(text).isoformat()
    if _NUMBER.fullmatch(text):
        return f"{Decimal(text).normalize():f}"
    return text
