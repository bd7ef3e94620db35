"""A decoded row against what pgoutput says."""

from __future__ import annotations

from typing import Any

from decoding import Row
from pgoutput import Change, exact_json

#: columns that the tables get or lose in the course of the workload: the catalog is of its end
CHANGING = {"gone", "also_gone", "added", "at", "nothing", "list", "flag", "last"}


def changes_of_rows(rows: list[Row]) -> list[Row]:
    """Without changed definitions, and without what an ALTER TABLE rewrites, which pgoutput does
    not show."""
    defined = {(row["xid"], row["table"]) for row in rows if row["operation"] == "schema"}
    rewritten = {
        (row["xid"], row["table"])
        for row in rows
        if row["operation"] == "truncate" and (row["xid"], row["table"]) in defined
    }
    return [
        row
        for row in rows
        if row["operation"] not in ("schema", "unknown")
        and (row["xid"], row["table"]) not in rewritten
    ]


def assert_same(row: dict[str, Any], change: Change) -> None:
    """Only a value that pgoutput reports as unchanged may be additional, or missing for the same
    reason."""
    where = f"{change.operation} of {change.table} at {row['lsn']:X}"
    assert (row["operation"], f"{row['schema']}.{row['table']}") == (
        change.operation, change.table,
    ), where  # fmt: skip
    assert (row["xid"], row["commit_lsn"]) == (change.xid, change.commit_lsn), where
    assert row["lsn"] == change.lsn, where
    new, old = exact_json(row["new"]), exact_json(row["old"])
    assert_row(new, change.new, where)
    if change.old is not None:
        assert_row(old, change.old, where)
    assert row["detail"] is None, where
    if row["unchanged"]:
        assert change.new is not None
        assert not change.new.keys() & set(row["unchanged"]), where


def assert_row(found: Any, expected: Any, where: str) -> None:
    if expected is None:
        assert found is None, where
        return
    assert found is not None, where
    for name in expected.keys() - CHANGING:
        assert found[name] == expected[name], f"{where}: {name}"
    for name in expected.keys() & found.keys():
        assert found[name] == expected[name], f"{where}: {name}"
