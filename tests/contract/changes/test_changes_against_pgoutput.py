"""What is decoded from the physical WAL is what Postgres decodes of it."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import LogOf
from decoding import read_all
from pgoutput import Change, exact_json

MAJORS = (15, 16, 18)

#: columns that the tables get or lose in the course of the workload: the catalog is of its end
CHANGING = {"gone", "also_gone", "added", "at", "nothing", "list", "flag"}


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("major", MAJORS)
def test_same_changes(changed_log: LogOf, major: int, is_compiled: bool) -> None:
    log = changed_log(major, "logical")
    rows = read_all(log, is_compiled=is_compiled)
    found = [row for row in rows if row["operation"] != "unknown"]
    expected = [change for change in log.expected if not is_forgotten(change)]
    assert len(log.expected) - len(expected) == 3
    for row, change in zip(found, expected, strict=False):
        assert_same(row, change)
    assert len(found) == len(expected)


def is_forgotten(change: Change) -> bool:
    """Of a file that was gone when the catalogs were taken."""
    return change.table == "public.short" or (change.new or {}).get("t") == "forgotten"


def assert_same(row: dict[str, Any], change: Change) -> None:
    """Only a value that pgoutput calls unchanged may be more, or be missing for the same reason."""
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
    if row["detail"] is not None:
        assert "unchanged out-of-line value" in row["detail"], where
        assert change.new is not None
        assert new.keys() >= change.new.keys() - CHANGING, where


def assert_row(found: Any, expected: Any, where: str) -> None:
    if expected is None:
        assert found is None, where
        return
    assert found is not None, where
    for name in expected.keys() - CHANGING:
        assert found[name] == expected[name], f"{where}: {name}"
    for name in expected.keys() & found.keys():
        assert found[name] == expected[name], f"{where}: {name}"
