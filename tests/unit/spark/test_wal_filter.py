"""The records that a filter passes, and filters that are refused."""

from __future__ import annotations

import pickle
import struct

import pytest
from raw_records import RELATION, index_of, main_data, raw_record

from quorum_wal.spark.errors import ColumnError, FilterError
from quorum_wal.spark.records.wal_decoder import WalDecoder
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS, WAL_SCHEMA, schema_of


def _block(database: int, relation: int, block_id: int = 0) -> bytes:
    return struct.pack("<BBHIIII", block_id, 0, 0, 1663, database, relation, 7)


#: position, xid and blocks: 0 none, 1 both tables, 2 the other database, 3 a top-level xid
RECORDS = [
    raw_record(main_data(b"abc"), rmgr_id=0, xid=0),
    raw_record(_block(5, 100) + _block(5, 200, 1) + main_data(b""), xid=700),
    raw_record(_block(6, 100) + main_data(b""), rmgr_id=11, xid=701),
    raw_record(struct.pack("<BI", 252, 700) + main_data(b"x"), xid=702),
]


@pytest.mark.parametrize(
    ("wal_filter", "expected"),
    [
        (WalFilter(), [0, 1, 2, 3]),
        (WalFilter(rmgrs=frozenset({"heap"})), [1, 3]),
        (WalFilter(rmgrs=frozenset({"XLOG", "Btree"})), [0, 2]),
        (WalFilter(rmgrs=frozenset({"custom128"})), []),
        (WalFilter(relations=frozenset({200, 300})), [1]),
        (WalFilter(relations=frozenset({100})), [1, 2]),
        (WalFilter(databases=frozenset({6})), [2]),
        (WalFilter(relations=frozenset({200}), databases=frozenset({6})), []),
        (WalFilter(xids=frozenset({700})), [1, 3]),
        (WalFilter(xids=frozenset({0, 701})), [0, 2]),
        (WalFilter(xids=frozenset({700}), rmgrs=frozenset({"XLOG"})), []),
    ],
)
def test_rows_that_pass(wal_filter: WalFilter, expected: list[int]) -> None:
    index = index_of(RECORDS)
    batch = WalDecoder(16, DEFAULT_COLUMNS, wal_filter).decode(index)
    batch.validate(full=True)
    everything = WalDecoder(16).decode(index).to_pylist()
    assert batch.to_pylist() == [everything[position] for position in expected]


def test_a_filter_can_be_pickled() -> None:
    wal_filter = WalFilter(frozenset({"Heap"}), frozenset({1}), frozenset({2}), frozenset({3}))
    assert pickle.loads(pickle.dumps(wal_filter)) == wal_filter


@pytest.mark.parametrize(
    ("major", "wal_filter", "message"),
    [
        (16, WalFilter(rmgrs=frozenset({"Heaps"})), 'Postgres 16 has no resource manager "Heaps"'),
        (14, WalFilter(rmgrs=frozenset({"custom128"})), "Postgres 14 has no resource manager"),
        (16, WalFilter(relations=frozenset({-1})), "invalid relation -1"),
        (16, WalFilter(databases=frozenset({1 << 32})), "invalid database 4294967296"),
        (16, WalFilter(xids=frozenset({1, 1 << 33})), "invalid xid 8589934592"),
    ],
)
def test_filters_that_nothing_can_pass(major: int, wal_filter: WalFilter, message: str) -> None:
    with pytest.raises(FilterError, match=message):
        WalDecoder(major, ("lsn",), wal_filter)


def test_columns() -> None:
    assert schema_of(("xid", "lsn")).names == ["xid", "lsn"]
    assert schema_of(DEFAULT_COLUMNS).names == WAL_SCHEMA.names[:-2]
    with pytest.raises(ColumnError, match='unknown column "lns"') as failure:
        schema_of(("lns",))
    assert "lsn, end_lsn" in failure.value.hint
    with pytest.raises(ColumnError, match='column "lsn" is named twice'):
        schema_of(("lsn", "lsn"))


def test_relation_of_the_block_before_counts() -> None:
    same = struct.pack("<BBHI", 1, 0x80, 0, 9)
    index = index_of([raw_record(struct.pack("<BBH", 0, 0, 0) + RELATION + bytes(4) + same)])
    batch = WalDecoder(16, ("blocks",), WalFilter(relations=frozenset({16384}))).decode(index)
    blocks = batch.to_pylist()[0]["blocks"]
    assert [(b["relfilenode"], b["block"]) for b in blocks] == [(16384, 0), (16384, 9)]
