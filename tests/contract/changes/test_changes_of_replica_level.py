"""wal_level replica: new rows are complete, old ones come from the pages that the WAL has shown."""

from __future__ import annotations

import pytest
from changed_logs import LogOf
from comparing import changes_of_rows
from decoding import Row, read_all, without_rows
from pgoutput import exact_json

MAJORS = (15, 16, 18)


@pytest.mark.parametrize("major", MAJORS)
def test_same_rows_as_at_logical_level(changed_log: LogOf, major: int) -> None:
    """The same workload on two servers; at logical level the result equals that of pgoutput."""
    logical, replica = (
        changes_of_rows(read_all(changed_log(major, level))) for level in ("logical", "replica")
    )
    assert len(logical) > 1000
    for one, other in zip(logical, replica, strict=True):
        where = f"{one['operation']} of {one['table']} at {other['lsn']:X}: {other['detail']}"
        for name in ("operation", "schema", "table"):
            assert one[name] == other[name], where
        assert other["detail"] is None, where
        assert one["unchanged"] == other["unchanged"], where
        for name in ("key", "new"):
            assert exact_json(one[name]) == exact_json(other[name]), where
        if one["operation"] == "delete":
            assert one["ctid"] == other["ctid"], where
        if one["old"] is not None:
            assert_old(exact_json(one["old"]), exact_json(other["old"]), where)


def is_replaced(row: Row) -> bool:
    return row["operation"] == "unknown" and row["detail"].startswith("the table was given a new")


def assert_old(key: Row, whole: Row, where: str) -> None:
    """Logical level has the key, or, with out-of-line values added, the whole row."""
    assert {name: value for name, value in key.items() if name in whole} == {
        name: value for name, value in whole.items() if name in key
    }, where
    assert whole.keys() >= {name for name, value in key.items() if len(str(value)) < 2000}, where


@pytest.mark.parametrize("major", MAJORS)
def test_replaced_files_are_said(changed_log: LogOf, major: int) -> None:
    """With catalogs that are not followed, TRUNCATE and rewrites are not told apart."""
    log = changed_log(major, "replica")
    rows = read_all(log, without_rows(log))
    replaced = [row["table"] for row in rows if is_replaced(row)]
    assert replaced == ["plain", "plain", "parted_1", "parted_2", "by_index"]
    written = [
        row["table"] for row in rows if (row["detail"] or "").startswith("whole pages of the")
    ]
    assert written == ["whole"]
