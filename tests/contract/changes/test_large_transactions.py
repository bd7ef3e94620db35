"""Transactions that do not fit into memory go through a temporary file; the rows are the same."""

from __future__ import annotations

import pytest
from changed_logs import LogOf
from decoding import Row, read_all, without_rows

from quorum_wal.spark.changes.change_spill import ChangeSpill

MEMORY_BYTES = 16_000
LOGS = [(18, "logical"), (16, "replica")]


@pytest.mark.parametrize(("major", "wal_level"), LOGS)
def test_small_limits(
    changed_log: LogOf, monkeypatch: pytest.MonkeyPatch, major: int, wal_level: str
) -> None:
    """Of each catalog: unknown files, truncated and rewritten tables are summarized, too."""
    log = changed_log(major, wal_level)
    catalogs = (None, log.catalogs[0], without_rows(log))
    expected = [read_all(log, catalog) for catalog in catalogs]
    large: list[range] = []

    def is_large(spill: ChangeSpill, numbers: range) -> bool:
        found = original(spill, numbers)
        large.extend([numbers] if found else [])
        return found

    original = ChangeSpill.is_large
    monkeypatch.setattr(ChangeSpill, "is_large", is_large)
    for catalog, rows in zip(catalogs, expected, strict=True):
        large.clear()
        assert_same(read_all(log, catalog, memory_bytes=MEMORY_BYTES), rows)
        assert len(large) > 3, "transactions larger than a piece"


def assert_same(found: list[Row], expected: list[Row]) -> None:
    for row, other in zip(found, expected, strict=False):
        assert row == other
    assert len(found) == len(expected)
