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
from quorum_wal.spark.changes.heap_scan import (
    DAMAGED,
    DATABASE,
    INSERT,
    NEW_AT,
    NEW_LENGTH,
    OFFSET,
    OPERATION,
    RELFILENODE,
    XID,
    scan_heap,
)
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
    ("info", "rmgr_id", "size"), [(0x00, 10, 2), (0x10, 10, 7), (0x20, 10, 13), (0x50, 9, 5)]
)
def test_main_data_that_is_too_short(info: int, rmgr_id: int, size: int) -> None:
    record = heap_record(b"\1" * size, TUPLE, info=info, rmgr_id=rmgr_id)
    with pytest.raises(WalFormatError, match="record is shorter than those of its kind at 0/1"):
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
        head = struct.pack("<HHB", count, rng.randrange(2), rng.choice((23, 24, 32, 255, 0)))
        stored = (head + rng.randbytes(rng.randint(0, 60)))[: rng.choice((3, 70))]
        data = np.frombuffer(stored + b"\xff" * 600, np.uint8)
        values = lay_out(data, np.zeros(1, np.int64), np.array([len(stored)]), columns)
        assert (values.at + values.length <= max(len(stored), 0)).all()
        assert (values.length >= 0).all()
