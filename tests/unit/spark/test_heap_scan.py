"""Records of the heap that Postgres does not write are refused; values end within their tuple."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from raw_records import RELATION, index_of, main_data, raw_record

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.changes.catalog import Column
from quorum_wal.spark.changes.heap_fields import (
    DAMAGED,
    DATABASE,
    INSERT,
    NEW_AT,
    NEW_LENGTH,
    OFFSET,
    OPERATION,
    RECORD,
    RELFILENODE,
    SEQ,
    XID,
)
from quorum_wal.spark.changes.heap_scan import scan_heap
from quorum_wal.spark.changes.transaction_summary import TransactionSummary
from quorum_wal.spark.changes.tuple_layout import lay_out

TUPLE = struct.pack("<HHB", 1, 0, 24) + b"\0" + struct.pack("<i", 7)


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def heap_record(main: bytes, data: bytes, *, rmgr_id: int = 10, info: int = 0) -> bytes:
    block = struct.pack("<BBH", 0, 0x20, len(data)) + RELATION + struct.pack("<I", 4)
    header, length = main_data(main), len(main)
    return raw_record(
        block + header[: len(header) - length] + data + main, rmgr_id=rmgr_id, info=info
    )


def test_an_insert() -> None:
    index = index_of([heap_record(struct.pack("<HB", 9, 8), TUPLE)])
    scan = scan_heap(index, wal_version(16), with_images=False)
    assert scan.changes.shape[1] == 1
    change = scan.changes[:, 0]
    assert change[[OPERATION, DATABASE, RELFILENODE, OFFSET, XID]].tolist() == [
        INSERT, 5, 16384, 9, 700,
    ]  # fmt: skip
    at, length = change[[NEW_AT, NEW_LENGTH]]
    assert index.data[at : at + length].tobytes() == TUPLE


@pytest.mark.parametrize(
    ("info", "rmgr_id", "main"),
    [
        pytest.param(0x00, 10, bytes(2), id="short insert"),
        pytest.param(0x00, 10, bytes(4), id="long insert"),
        pytest.param(0x10, 10, bytes(7), id="short delete"),
        pytest.param(0x10, 10, bytes(8 + 9), id="delete with an old row that its flags deny"),
        pytest.param(0x10, 10, bytes(7) + b"\2", id="delete without the old row of its flags"),
        pytest.param(0x20, 10, bytes(13), id="short update"),
        pytest.param(0x20, 10, bytes(14 + 9), id="update with an old row that its flags deny"),
        pytest.param(0x40, 10, bytes(7) + b"\x08" + bytes(6), id="update without its old key"),
        pytest.param(0x30, 10, struct.pack("<IIB3xI", 5, 2, 0, 9), id="truncate of two, one oid"),
        pytest.param(0x30, 10, struct.pack("<IIB3xI", 5, 0, 0, 9), id="truncate of none, one oid"),
        pytest.param(0x50, 9, b"\1" * 5, id="short multi-insert"),
        pytest.param(0x50, 9, struct.pack("<BxHHH", 8, 1, 1, 2), id="one row, two places"),
        pytest.param(0x50, 9, struct.pack("<BxH", 8, 0), id="no row"),
    ],
)
def test_main_data_of_another_length(info: int, rmgr_id: int, main: bytes) -> None:
    record = heap_record(main, TUPLE, info=info, rmgr_id=rmgr_id)
    with pytest.raises(WalFormatError, match="at 0/1000028 does not have the format of its"):
        scan_heap(index_of([record]), wal_version(16), with_images=False)


def test_headers_longer_than_the_record() -> None:
    record = heap_record(struct.pack("<HB", 9, 8), TUPLE)
    longer = record[:-6] + record[-3:]
    longer = struct.pack("<I", len(longer)) + longer[4:]
    with pytest.raises(WalFormatError, match="record with invalid length at 0/1"):
        scan_heap(index_of([longer]), wal_version(16), with_images=False)


def test_multi_insert_with_fewer_tuples_than_it_says() -> None:
    stored = struct.pack("<H", len(TUPLE) - 5) + TUPLE
    main = struct.pack("<BxHHHH", 8, 3, 1, 2, 3)
    record = heap_record(main, stored + b"\xff" * 9, rmgr_id=9, info=0x50)
    scan = scan_heap(index_of([record]), wal_version(16), with_images=False)
    assert scan.changes[OPERATION].tolist()[:2] == [INSERT, DAMAGED]


def test_multi_insert_with_more_tuples_than_it_says() -> None:
    stored = struct.pack("<H", len(TUPLE) - 5) + TUPLE
    main = struct.pack("<BxHH", 8, 1, 1)
    record = heap_record(main, stored + stored, rmgr_id=9, info=0x50)
    scan = scan_heap(index_of([record]), wal_version(16), with_images=False)
    assert scan.changes[OPERATION].tolist() == [DAMAGED]


def test_records_with_more_rows_than_there_was_room_for(rng: random.Random) -> None:
    """The rows are those of each record alone."""
    records = [multi_insert(rng.choice((1, 5, 226))) for _ in range(200)]
    together = scan_heap(index_of(records), wal_version(16), with_images=False).changes
    alone = [
        scan_heap(index_of([record]), wal_version(16), with_images=False).changes
        for record in records
    ]
    fields = [OPERATION, OFFSET, NEW_LENGTH, XID, SEQ]
    assert (together[fields] == np.concatenate(alone, axis=1)[fields]).all()
    numbers = np.repeat(np.arange(len(records)), [each.shape[1] for each in alone])
    assert (together[RECORD] == numbers).all()


def multi_insert(rows: int) -> bytes:
    stored = struct.pack("<H", len(TUPLE) - 5) + TUPLE
    main = struct.pack("<BxH", 8, rows) + struct.pack(f"<{rows}H", *range(1, rows + 1))
    return heap_record(main, stored.ljust(len(stored) + 1 & ~1, b"\0") * rows, rmgr_id=9, info=0x50)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(main_data(bytes(7)), id="no time"),
        pytest.param(main_data(bytes(12)), id="more than a time"),
        pytest.param(main_data(bytes(8))[:-1], id="shorter than its header says"),
        pytest.param(main_data(b"\xff" * 7 + b"\x7f"), id="time after the year 9999"),
    ],
)
def test_commit_of_another_length(body: bytes) -> None:
    """Taken as it is, the transaction would be lost."""
    record = raw_record(body, rmgr_id=1)
    with pytest.raises(WalFormatError):
        scan_heap(index_of([record]), wal_version(16), with_images=False)


@pytest.mark.parametrize(
    ("running", "message"),
    [
        pytest.param(bytes(20), "has 20 bytes", id="short"),
        pytest.param(struct.pack("<iiB3xIII", 2, 0, 0, 9, 7, 8) + b"\7\0\0\0", "2 trans", id="two"),
        pytest.param(
            struct.pack("<iiB3xIII", 0, 0, 0, 9, 7, 8) + b"\7\0\0\0", "0 trans", id="none"
        ),
        pytest.param(struct.pack("<iiB3xIII", -1, 0, 0, 9, 7, 8), "-1 trans", id="negative"),
    ],
)
def test_list_of_open_transactions_of_another_length(running: bytes, message: str) -> None:
    """Taken as it is, transactions would count as begun later."""
    record = raw_record(main_data(running), rmgr_id=8, info=0x10)
    scan = scan_heap(index_of([record]), wal_version(16), with_images=False)
    with pytest.raises(WalFormatError, match=message):
        TransactionSummary.at(scan)


def test_any_bytes_are_scanned_or_refused(rng: random.Random) -> None:
    for _ in range(3000):
        record = bytearray(heap_record(rng.randbytes(rng.randint(0, 20)), rng.randbytes(40)))
        for _ in range(rng.randint(0, 4)):
            record[rng.randrange(24, len(record))] = rng.randrange(256)
        record[16], record[17] = rng.randrange(256), rng.choice((0, 1, 2, 9, 10))
        index = index_of([bytes(record)])
        try:
            scan = scan_heap(index, wal_version(rng.choice((14, 16))), with_images=True)
        except WalFormatError:
            continue
        ends = scan.changes[NEW_AT] + scan.changes[NEW_LENGTH]
        assert (ends <= len(index.data)).all()


def test_values_end_within_their_tuple(rng: random.Random) -> None:
    kinds = [(4, 4), (-1, 4), (1, 1), (-1, 8), (-2, 1), (8, 8), (-1, 1)]
    for _ in range(3000):
        columns = [
            Column("c", 0, -1, *rng.choice(kinds), False, False, None, None)
            for _ in range(rng.randint(1, 12))
        ]
        count = rng.randint(0, 15)
        has_null = rng.randrange(2)
        size = 23 + has_null * (count + 7) // 8 + 7 & ~7
        head = struct.pack("<HHB", count, has_null, rng.choice((size, size, 23, 24, 32, 255, 0)))
        stored = (head + rng.randbytes(rng.randint(0, 60)))[: rng.choice((3, 70))]
        data = np.frombuffer(bytearray(stored) + b"\xff" * 600, np.uint8)
        values = lay_out(data, np.zeros(1, np.int64), np.array([len(stored)]), columns)
        assert (values.at + values.length <= max(len(stored), 0)).all()
        assert (values.length >= 0).all()
        if values.fits[0] and 0 < count <= len(columns):
            assert (values.at + values.length).max() <= len(stored)


@pytest.mark.parametrize(
    ("header", "values", "fits"),
    [
        pytest.param((2, 0, 24), b"\7\0\0\0" + b"\x05a", True, id="right"),
        pytest.param((3, 0, 24), b"\7\0\0\0" + b"\x05a", True, id="more columns than are known"),
        pytest.param((1, 0, 24), b"\7\0\0\0" + b"\x05a", False, id="fewer columns than values"),
        pytest.param((2, 1, 24), b"\7\0\0\0" + b"\x05a", False, id="NULLs, but all values"),
        pytest.param((2, 0, 32), b"\7\0\0\0" + b"\x05a", False, id="another place of the values"),
        pytest.param((2, 0, 24), b"\7\0\0\0" + b"\x05ab", False, id="bytes after the last value"),
    ],
)
def test_a_tuple_fits_its_columns(header: tuple[int, int, int], values: bytes, fits: bool) -> None:
    """The values end exactly where the tuple ends, and begin where Postgres lets them."""
    columns = [
        Column("a", 23, -1, 4, 4, True, False, None, None),
        Column("b", 25, -1, -1, 4, False, False, None, None),
    ]
    stored = struct.pack("<HHBx", *header) + values
    data = np.frombuffer(bytearray(stored) + bytes(16), np.uint8)
    found = lay_out(data, np.zeros(1, np.int64), np.array([len(stored)]), columns)
    assert found.fits.tolist() == [fits]
