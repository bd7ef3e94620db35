"""What is decoded from the physical WAL is what Postgres decodes of it."""

from __future__ import annotations

import pytest
from changed_logs import LogOf
from comparing import assert_same
from decoding import read_all
from pgoutput import Change

MAJORS = (15, 16, 18)


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
