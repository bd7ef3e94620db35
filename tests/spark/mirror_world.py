"""A server with tables of all shapes, a random workload, and its tables compared with a mirror."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

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
KEYS = 40
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:")
_NUMBER = re.compile(r"-?[0-9.]{1,24}(e[-+]?\d+)?")


def create_tables(postgres: Postgres) -> None:
    for statement in TABLES.split(";\n"):
        if statement.strip():
            postgres.execute(statement)


class Workload:
    """Random transactions; some are rolled back, some have savepoints."""

    def __init__(self, postgres: Postgres, rng: Random) -> None:
        self._postgres = postgres
        self._rng = rng

    def run(self, transactions: int) -> None:
        with self._postgres.connect(autocommit=False) as connection:
            for _ in range(transactions):
                for _ in range(self._rng.randint(1, 4)):
                    connection.execute(self._statement().encode())
                if self._rng.random() < 0.15:
                    connection.execute("SAVEPOINT s")
                    connection.execute(self._statement().encode())
                    connection.execute("ROLLBACK TO s")
                if self._rng.random() < 0.15:
                    connection.rollback()
                else:
                    connection.commit()

    def _statement(self) -> str:
        rng = self._rng
        key, other = rng.randrange(KEYS), rng.randrange(KEYS)
        big = f"repeat('{rng.randrange(1000)}', {rng.choice((5, 900))})"
        upsert = (
            f"INSERT INTO shop.orders (id, state, total, note, big, raw, tags, doc, ratio, flag)"
            f" VALUES ({key}, '{rng.choice(('new', 'paid', 'sent'))}', {rng.randrange(10**6)}.5,"
            f" 'a \"note\" {key}', {big}, '\\x00ff{key:02}', ARRAY['x', NULL, '{key}'],"
            f" '{{\"a\": [1, {key}.50]}}', {rng.random()}, {rng.choice(('true', 'NULL'))})"
            f" ON CONFLICT (id) DO UPDATE SET total = excluded.total, note = excluded.note"
        )
        choices = (
            upsert,
            upsert,
            f"UPDATE shop.orders SET note = note || '!' WHERE id % 7 = {key % 7}",
            f"UPDATE shop.orders SET id = {other} WHERE id = {key}"
            f" AND NOT EXISTS (SELECT FROM shop.orders WHERE id = {other})",
            f"UPDATE shop.orders SET big = {big}, ratio = 'NaN' WHERE id = {key}",
            f"DELETE FROM shop.orders WHERE id = {key}",
            f"INSERT INTO shop.items VALUES ({key}, 'it''s {other}', {rng.random()})"
            " ON CONFLICT DO NOTHING",
            f"UPDATE shop.items SET name = name || 'x', amount = amount + 1 WHERE order_id = {key}",
            f"DELETE FROM shop.items WHERE order_id = {key}",
            f"INSERT INTO shop.log VALUES ('2026-11-26 10:00:00.{key}', 'a {key}'), (NULL, NULL)",
            f"INSERT INTO shop.parts VALUES ({key}, '{rng.choice('ns')}', {other})"
            " ON CONFLICT (id, region) DO UPDATE SET n = excluded.n",
            f"UPDATE shop.parts SET region = 's' WHERE id = {key} AND region = 'n' AND NOT EXISTS"
            f" (SELECT FROM shop.parts WHERE id = {key} AND region = 's')",
            f"INSERT INTO public.other VALUES ({key}) ON CONFLICT DO NOTHING",
            "TRUNCATE shop.items" if rng.random() < 0.2 else "SELECT 1",
        )
        return rng.choice(choices)


def rows_in_postgres(postgres: Postgres, table: str) -> list[str]:
    """The rows as JSON, sorted."""
    with postgres.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        found = connection.execute(f"SELECT row_to_json(t)::text FROM ONLY {table} t".encode())
        return sorted(_plain(json.loads(text, parse_float=str, parse_int=str)) for (text,) in found)


def mirrored_rows(url: Path, table: str, version: Version | None = None) -> list[str]:
    """The rows of the files of a version."""
    store = open_store(str(url))
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
