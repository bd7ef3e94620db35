"""A random history of tables of a mirror: rows, columns and tables change from version to version.

A table has files of several buckets; a change of its columns writes all of them again, as the
mirror does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from file_mirror import FileMirror

from quorum_wal.spark.changes.table_definition import Definition
from quorum_wal.spark.mirror.version import MirrorFile, MirrorTable, Version

BUCKETS = 4
NAMES = ("a", "b", "ü c")
#: changes of types that a mirror follows, allowed by Iceberg or not
CHANGED_TYPES = {
    "integer": ("bigint", "text"),
    "numeric(10,2)": ("numeric(20,2)", "numeric(9,1)"),
    "real": ("double precision", "boolean"),
    "date": ("timestamp without time zone",),
    "text": ("bytea",),
}
VALUES = {
    "integer": (b"-1", b"7"),
    "bigint": (b"9223372036854775807",),
    "numeric(10,2)": (b"-12345678.25", b"0.50"),
    "numeric(20,2)": (b"123456789012345678.75",),
    "numeric(9,1)": (b"1.5",),
    "real": (b"0.5", b"-1.25"),
    "double precision": (b"0.1",),
    "boolean": (b"true", b"false"),
    "date": (b'"2026-11-26"', b'"1970-01-01"'),
    "timestamp without time zone": (b'"2026-11-26T09:00:00.123456"',),
    "text": ('"ü"'.encode(), b'""'),
    "bytea": (rb'"\\x00ff"',),
}


@dataclass(slots=True)
class TableState:
    """`columns` are (number, name, type)."""

    columns: list[tuple[int, str, str]]
    last_number: int
    rows: dict[int, list[dict[str, bytes]]] = field(default_factory=dict)
    files: dict[int, MirrorFile] = field(default_factory=dict)


class TableHistory:
    """Tables by their names, changed at random."""

    def __init__(self, mirror: FileMirror, rng: Random) -> None:
        self._mirror = mirror
        self._rng = rng
        self._tables: dict[str, TableState] = {}
        self._ids = 0

    def next_version(self) -> Version:
        """Creates a version after a change of some of the tables."""
        rng = self._rng
        for name in rng.sample(NAMES, rng.randint(0, len(NAMES))):
            state = self._tables.get(name)
            if state is None:
                self._tables[name] = TableState([(1, "id", "integer")], 1)
                self._add_column(name, self._tables[name])
            else:
                changes = (self._change_rows,) * 4 + (
                    self._add_column, self._drop_column, self._rename_column, self._change_type,
                    self._empty, self._drop, self._rename,
                )  # fmt: skip
                rng.choice(changes)(name, state)
        tables = [
            MirrorTable(definition(name, state), BUCKETS, tuple(state.files.values()))
            for name, state in self._tables.items()
        ]
        return self._mirror.create(*tables)

    @property
    def _number(self) -> int:
        return self._mirror.version.number + 1

    def _change_rows(self, name: str, state: TableState) -> None:
        for bucket in self._rng.sample(range(BUCKETS), self._rng.randint(1, BUCKETS)):
            state.rows[bucket] = [self._row(state) for _ in range(self._rng.randint(0, 3))]
            self._write(name, state, bucket)

    def _row(self, state: TableState) -> dict[str, bytes]:
        self._ids += 1
        row = {
            column: self._rng.choice(VALUES[kind])
            for _, column, kind in state.columns
            if self._rng.random() < 0.8
        }
        return row | {state.columns[0][1]: str(self._ids).encode()}

    def _write(self, name: str, state: TableState, bucket: int) -> None:
        state.files.pop(bucket, None)
        if rows := state.rows.get(bucket):
            state.files[bucket] = self._mirror.write(
                definition(name, state), bucket, rows, self._number
            )

    def _rewrite(self, name: str, state: TableState) -> None:
        for bucket in range(BUCKETS):
            self._write(name, state, bucket)

    def _add_column(self, name: str, state: TableState) -> None:
        state.last_number += 1
        number, kind = state.last_number, self._rng.choice(list(CHANGED_TYPES))
        state.columns.append((number, f"c{number}", kind))
        self._rewrite(name, state)

    def _drop_column(self, name: str, state: TableState) -> None:
        if len(state.columns) > 1:
            state.columns.pop(self._rng.randrange(1, len(state.columns)))
        self._rewrite(name, state)

    def _rename_column(self, name: str, state: TableState) -> None:
        number, old, kind = state.columns[-1]
        new = f"{old}_"
        state.columns[-1] = (number, new, kind)
        for rows in state.rows.values():
            for row in rows:
                if old in row:
                    row[new] = row.pop(old)
        self._rewrite(name, state)

    def _change_type(self, name: str, state: TableState) -> None:
        number, column, kind = state.columns[-1]
        if len(state.columns) == 1 or kind not in CHANGED_TYPES:
            return
        kind = self._rng.choice(CHANGED_TYPES[kind])
        state.columns[-1] = (number, column, kind)
        for rows in state.rows.values():
            for row in rows:
                row[column] = self._rng.choice(VALUES[kind])
        self._rewrite(name, state)

    def _empty(self, name: str, state: TableState) -> None:
        state.rows, state.files = {}, {}

    def _drop(self, name: str, state: TableState) -> None:
        """A table of this name that comes later has other columns with the same numbers."""
        del self._tables[name]

    def _rename(self, name: str, state: TableState) -> None:
        free = [each for each in NAMES if each not in self._tables]
        if free:
            self._tables[free[0]] = self._tables.pop(name)
            self._rewrite(free[0], state)


def definition(name: str, state: TableState) -> Definition:
    columns: list[dict[str, Any]] = [
        {"number": number, "name": column, "type": kind} for number, column, kind in state.columns
    ]
    return {"schema": "s", "table": name, "kind": "table", "key": ["id"], "columns": columns}
