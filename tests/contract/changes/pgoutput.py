"""What Postgres's own logical decoding says of the same WAL: pgoutput, through a slot, as JSON.

Values come as text; the server itself makes JSON of them, as row_to_json() does. Source: Postgres
documentation, "Logical Replication Message Formats".
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg import sql

from quorum_wal.pg_fixtures.postgres import Postgres

#: a row: columns and values, numbers as they are written
Row = dict[str, Any]

UNCHANGED = object()


@dataclass(frozen=True, slots=True)
class Change:
    """`new` has no unchanged out-of-line values; `old` is the key or all of it, without NULLs if it
    is the key."""

    commit_lsn: int
    commit_time_us: int
    xid: int
    lsn: int
    operation: str
    table: str
    new: Row | None
    old: Row | None


def exact_json(text: str | None) -> Any:
    """Numbers stay text, so that 1.10 is not 1.1."""
    if text is None:
        return None
    return json.loads(text, parse_float=str, parse_int=str)


def create_slot(postgres: Postgres) -> None:
    postgres.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    postgres.execute("SELECT pg_create_logical_replication_slot('oracle', 'pgoutput')")


def decoded_changes(postgres: Postgres) -> list[Change]:
    """All changes since the slot was created."""
    with postgres.connect() as connection:
        connection.execute("SET timezone = 'UTC'")
        messages = connection.execute(
            "SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_get_binary_changes('oracle',"
            " NULL, NULL, 'proto_version', '1', 'publication_names', 'everything')"
        ).fetchall()
        reader = _Reader(connection)
        for lsn, data in messages:
            reader.read(int(lsn), bytes(data))
    return reader.changes


@dataclass(frozen=True, slots=True)
class _Relation:
    name: str
    #: (name, type as SQL writes it)
    columns: list[tuple[str, str]]


class _Reader:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.changes: list[Change] = []
        self._connection = connection
        self._relations: dict[int, _Relation] = {}
        self._begin = (0, 0, 0)
        self._type_name = cache(self._read_type_name)

    def read(self, lsn: int, data: bytes) -> None:
        kind, body = data[:1], data[1:]
        if kind == b"B":
            self._begin = struct.unpack("!QqI", body)
        elif kind == b"R":
            self._relation(body)
        elif kind in (b"I", b"U", b"D"):
            self._row_change(lsn, kind, body)
        elif kind == b"T":
            count, _ = struct.unpack_from("!IB", body)
            for oid in struct.unpack_from(f"!{count}I", body, 5):
                self._add(lsn, "truncate", self._relations[oid].name, None, None)
        else:
            assert kind in b"CYO", kind

    def _add(self, lsn: int, operation: str, table: str, new: Any, old: Any) -> None:
        commit_lsn, time_us, xid = self._begin
        self.changes.append(Change(commit_lsn, time_us, xid, lsn, operation, table, new, old))

    def _relation(self, body: bytes) -> None:
        (oid,) = struct.unpack_from("!I", body)
        schema, table, rest = body[4:].split(b"\0", 2)
        (count,) = struct.unpack_from("!H", rest, 1)
        columns, at = [], 3
        for _ in range(count):
            end = rest.index(b"\0", at + 1)
            type_oid, typmod = struct.unpack_from("!Ii", rest, end + 1)
            columns.append((rest[at + 1 : end].decode(), self._type_name(type_oid, typmod)))
            at = end + 9
        self._relations[oid] = _Relation(f"{schema.decode()}.{table.decode()}", columns)

    def _read_type_name(self, type_oid: int, typmod: int) -> str:
        ((name,),) = self._connection.execute("SELECT format_type(%s, %s)", (type_oid, typmod))
        return str(name)

    def _row_change(self, lsn: int, kind: bytes, body: bytes) -> None:
        (oid,) = struct.unpack_from("!I", body)
        relation, at = self._relations[oid], 4
        found: dict[bytes, Row] = {}
        while at < len(body):
            part = body[at : at + 1]
            values, at = _tuple(body, at + 1)
            found[part] = self._as_json(relation, values, is_key=part == b"K")
        operation = {b"I": "insert", b"U": "update", b"D": "delete"}[kind]
        old = found.get(b"K", found.get(b"O"))
        self._add(lsn, operation, relation.name, found.get(b"N"), old)

    def _as_json(self, relation: _Relation, values: list[Any], *, is_key: bool) -> Row:
        there = [
            (column, value)
            for column, value in zip(relation.columns, values, strict=True)
            if value is not UNCHANGED and not (is_key and value is None)
        ]
        query = sql.SQL("SELECT row_to_json(r)::text FROM (SELECT {}) r").format(
            sql.SQL(", ").join(
                sql.SQL("{}::text::{} AS {}").format(value, sql.SQL(name), sql.Identifier(column))
                for (column, name), value in there
            )
        )
        ((text,),) = self._connection.execute(query)
        row: Row = exact_json(text)
        return row


def _tuple(body: bytes, at: int) -> tuple[list[Any], int]:
    (count,) = struct.unpack_from("!H", body, at)
    at += 2
    values: list[Any] = []
    for _ in range(count):
        kind = body[at : at + 1]
        at += 1
        if kind == b"n":
            values.append(None)
        elif kind == b"u":
            values.append(UNCHANGED)
        else:
            (length,) = struct.unpack_from("!I", body, at)
            values.append(body[at + 4 : at + 4 + length].decode())
            at += 4 + length
    return values, at
