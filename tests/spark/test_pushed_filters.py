"""The part of Spark's filters that a source applies never excludes more rows than the filters."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.sources.pushed_filters import PushedFilters, PushFilters

WHOLE = WalRange(100, 200, 300, is_boundary=True)
LSN, RMGR, XID = ("lsn",), ("rmgr",), ("xid",)


@pytest.mark.parametrize(
    ("filters", "begin", "end"),
    [
        ([], 100, 200),
        ([IsNotNull(LSN), Not(EqualTo(LSN, 5)), GreaterThan(("tli",), 150)], 100, 200),
        ([GreaterThanOrEqual(LSN, 150)], 150, 200),
        ([GreaterThan(LSN, 150), GreaterThan(LSN, 120)], 151, 200),
        ([LessThan(LSN, 150), LessThanOrEqual(LSN, 170)], 100, 150),
        ([LessThanOrEqual(LSN, 150)], 100, 151),
        ([EqualTo(LSN, 150)], 150, 151),
        ([LessThan(LSN, 50)], 100, 100),
        ([GreaterThan(LSN, 500)], 200, 200),
    ],
)
def test_ranges(filters: list[Filter], begin: int, end: int) -> None:
    narrowed = PushedFilters.of(filters).narrow_range(WHOLE)
    assert narrowed == WalRange(begin, end, 300, is_boundary=begin == 100)


@pytest.mark.parametrize(
    ("asked", "filters", "expected"),
    [
        (WalFilter(), [EqualTo(RMGR, "Heap")], {"Heap"}),
        (WalFilter(), [In(RMGR, ("Heap", "Nonsense"))], {"Heap"}),
        (WalFilter(), [EqualTo(RMGR, "Nonsense")], set()),
        (WalFilter(rmgrs=frozenset({"heap", "XLOG"})), [In(RMGR, ("Heap", "Btree"))], {"Heap"}),
        (WalFilter(rmgrs=frozenset({"XLOG"})), [EqualTo(RMGR, "Heap")], {"XLOG"}),
        (WalFilter(), [In(RMGR, ("Heap", "XLOG")), In(RMGR, ("XLOG", "Btree"))], {"XLOG"}),
    ],
)
def test_resource_managers(asked: WalFilter, filters: list[Filter], expected: set[str]) -> None:
    assert PushedFilters.of(filters).narrow_filter(asked, 16).rmgrs == expected


@pytest.mark.parametrize(
    ("asked", "filters", "expected"),
    [
        (WalFilter(), [EqualTo(XID, 7)], {7}),
        (WalFilter(), [In(XID, (7, 8)), In(XID, (8, 9))], {8}),
        (WalFilter(xids=frozenset({8, 9})), [In(XID, (7, 8))], {8}),
        (WalFilter(xids=frozenset({9})), [EqualTo(XID, 7)], {9}),
        (WalFilter(), [EqualTo(XID, -7)], set()),
    ],
)
def test_transactions(asked: WalFilter, filters: list[Filter], expected: set[int]) -> None:
    assert PushedFilters.of(filters).narrow_filter(asked, 16).xids == expected


def test_spark_takes_it_for_a_reader_without_pushdown() -> None:
    """Spark checks this before it refuses one, and applies every filter again."""
    taken: list[PushedFilters] = []
    push = PushFilters(taken.append)
    assert push.__func__ is DataSourceReader.pushFilters
    filters: list[Filter] = [EqualTo(XID, 7)]
    assert push(filters) is filters
    assert taken == [PushedFilters(xids=frozenset({7}))]
