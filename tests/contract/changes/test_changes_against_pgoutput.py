"""What is decoded from the physical WAL is what Postgres decodes of it."""

from __future__ import annotations

import pytest
from changed_logs import LogOf
from comparing import assert_same, changes_of_rows
from decoding import read_all

MAJORS = (15, 16, 18)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("major", MAJORS)
def test_same_changes(changed_log: LogOf, major: int, is_compiled: bool) -> None:
    log = changed_log(major, "logical")
    found = changes_of_rows(read_all(log, is_compiled=is_compiled))
    for row, change in zip(found, log.expected, strict=False):
        assert_same(row, change)
    assert len(found) == len(log.expected)
