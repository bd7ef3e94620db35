"""A client that writes down what its statements did: the truth about the changes of rows.

RETURNING row_to_json() says what each row is at that moment, and its table's name of that moment.
What is rolled back is struck out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from decoding import Row
from pgoutput import exact_json

from quorum_wal.pg_fixtures.postgres import Postgres


@dataclass(frozen=True, slots=True)
class Entry:
    """`row` is the new row; of a delete, the old one."""

    operation: str
    table: str
    row: Row | None


class Ledger:
    """One client; `entries` are those of committed transactions, in the order of the commits."""

    def __init__(self, postgres: Postgres) -> None:
        self.connection = postgres.connect()
        self.connection.execute("SET timezone = 'UTC'; SET search_path = ''")
        self.entries: list[Entry] = []
        self._open: list[Entry] | None = None
        self._savepoints: dict[str, int] = {}
        self._prepared: dict[str, list[Entry]] = {}

    def do(self, *statements: str) -> None:
        """DDL, and what else changes no row."""
        for statement in statements:
            self._execute(statement)

    def insert(self, table: str, values: str) -> None:
        self._change("insert", f"INSERT INTO {table} AS r {values}")

    def update(self, table: str, change: str) -> None:
        self._change("update", f"UPDATE {table} AS r SET {change}")

    def delete(self, table: str, condition: str) -> None:
        self._change("delete", f"DELETE FROM {table} AS r WHERE {condition}")

    def truncate(self, *tables: str) -> None:
        self._execute(f"TRUNCATE {', '.join(tables)}")
        self._add([Entry("truncate", table, None) for table in tables])

    def rewrite(self, statement: str, table: str) -> None:
        """An ALTER TABLE that writes all rows anew."""
        self._execute(statement)
        if rows := self._all(table):
            self._add([Entry("truncate", table, None), *rows])

    def fill(self, statement: str, table: str) -> None:
        """All rows of the table are inserted: CREATE TABLE AS, for example."""
        self._execute(statement)
        self._add(self._all(table))

    # ---- transactions

    def begin(self) -> None:
        self._execute("BEGIN")
        self._open = []

    def commit(self) -> None:
        self._execute("COMMIT")
        assert self._open is not None
        self.entries += self._open
        self._open = None

    def rollback(self) -> None:
        self._execute("ROLLBACK")
        self._open = None

    def savepoint(self, name: str) -> None:
        self._execute(f"SAVEPOINT {name}")
        assert self._open is not None
        self._savepoints[name] = len(self._open)

    def rollback_to(self, name: str) -> None:
        self._execute(f"ROLLBACK TO {name}")
        assert self._open is not None
        del self._open[self._savepoints[name] :]

    def prepare(self, name: str) -> None:
        self._execute(f"PREPARE TRANSACTION '{name}'")
        assert self._open is not None
        self._prepared[name], self._open = self._open, None

    def commit_prepared(self, name: str) -> None:
        self._execute(f"COMMIT PREPARED '{name}'")
        self.entries += self._prepared.pop(name)

    # ---- parts

    def _execute(self, statement: str) -> psycopg.Cursor[Any]:
        return self.connection.execute(statement)  # type: ignore[arg-type]

    def _rows(self, query: str) -> list[tuple[Any, ...]]:
        return self._execute(query).fetchall()

    def _all(self, table: str) -> list[Entry]:
        rows = self._rows(f"SELECT row_to_json(r)::text FROM {table} r ORDER BY ctid")
        return [Entry("insert", table, exact_json(row)) for (row,) in rows]

    def _add(self, entries: list[Entry]) -> None:
        (self.entries if self._open is None else self._open).extend(entries)

    def _change(self, operation: str, statement: str) -> None:
        rows = self._rows(f"{statement} RETURNING r.tableoid::regclass::text, row_to_json(r)::text")
        self._add([Entry(operation, table, exact_json(row)) for table, row in rows])


def assert_rows(rows: list[Row], entries: list[Entry]) -> None:
    """The decoded rows, without those of changed definitions, are those of the ledger."""
    changes = [row for row in rows if row["operation"] != "schema"]
    for row, entry in zip(changes, entries, strict=False):
        where = f"{row} is not {entry}"
        assert row["detail"] is None, where
        assert (row["operation"], f"{row['schema']}.{row['table']}") == (
            entry.operation, entry.table,
        ), where  # fmt: skip
        if entry.operation == "delete":
            old = exact_json(row["old"])
            assert old is not None, where
            assert old.items() <= entry.row.items() if entry.row else False, where
        elif entry.row is None:
            assert row["new"] is None, where
        else:
            new, unchanged = exact_json(row["new"]), set(row["unchanged"] or ())
            expected = {name: value for name, value in entry.row.items() if name not in unchanged}
            assert new == expected, where
            assert list(new) == list(expected), where
    assert len(changes) == len(entries), (changes[len(entries) :], entries[len(changes) :])
