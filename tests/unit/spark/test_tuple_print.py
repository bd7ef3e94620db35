"""The compiled loop prints what the readers of single values print."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable

import numpy as np
import pytest

from quorum_wal.spark.changes import datum, tuple_print
from quorum_wal.spark.changes.catalog import Column, Table
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.toast_chunks import ChunkIndex, ToastChunks, bytes_of
from quorum_wal.spark.changes.tuple_cells import Cells, TableFormat, read_cells
from quorum_wal.spark.changes.tuple_print import PRINT

ROWS = 400
NOTHING = np.empty(0, np.int64)
TEXTS = ("", "plain", 'quote " back \\ slash', "\x01\x1f\x7f\b\f\n\r\t", "é 漢 😀", "a" * 300)


def some_i64(rng: random.Random) -> bytes:
    return struct.pack("<q", rng.choice((rng.getrandbits(63), -rng.getrandbits(60), 0, -(1 << 63))))


def some_time(rng: random.Random) -> bytes:
    edges = (-63082281600000000, 252455615999999999, (1 << 63) - 1, -(1 << 63), 0, -1, 1_500_000)
    value = rng.choice(edges) + rng.choice((-1, 0, 1)) if rng.random() < 0.3 else 0
    value = value or rng.randint(-(10**17), 3 * 10**17)
    return struct.pack("<q", max(-(1 << 63), min((1 << 63) - 1, value)))


def some_date(rng: random.Random) -> bytes:
    edges = (-730119, -730120, 2921939, 2921940, (1 << 31) - 1, -(1 << 31), 0, 59, 60, 366)
    return struct.pack("<i", rng.choice((*edges, rng.randint(-800_000, 3_000_000))))


def some_numeric(rng: random.Random) -> bytes:
    special = rng.choice((0xC000, 0xD000, 0xF000))
    if rng.random() < 0.1:
        return struct.pack("<H", special)
    digits = [rng.randrange(1, 10_000), *(rng.randrange(10_000) for _ in range(rng.randint(0, 4)))]
    tail = struct.pack(f"<{len(digits)}H", *digits)
    if rng.random() < 0.5:
        sign = rng.choice((0, 0x4000))
        return struct.pack("<Hh", sign | rng.randint(0, 40), rng.randint(-12, 12)) + tail
    weight, sign = rng.randint(-12, 12) & 0x7F, rng.choice((0, 0x2000))
    return struct.pack("<H", 0x8000 | sign | rng.randint(0, 40) << 7 | weight) + tail


def some_float8(rng: random.Random) -> bytes:
    kinds = (rng.uniform(-1e3, 1e3), rng.gauss(0, 1e10), rng.uniform(-2e-4, 2e-4), float("nan"))
    edges = (
        0.0,
        -0.0,
        1e10,
        9999999999.9,
        1e15,
        1e-4,
        999999999999999.9,
        1e-5,
        float("-inf"),
        123.0,
    )
    if rng.random() < 0.3:
        return rng.randbytes(8)
    return struct.pack("<d", rng.choice((*kinds, *edges)))


def some_float4(rng: random.Random) -> bytes:
    kinds = (rng.uniform(-1e3, 1e3), rng.gauss(0, 1e6), rng.uniform(-2e-4, 2e-4), 0.0, -0.0)
    if rng.random() < 0.3:
        return rng.randbytes(4)
    return struct.pack("<f", rng.choice((*kinds, 1e6, 999999.9, 1e-4, 9e-5, 7.0)))


#: type -> (stored length, alignment, a stored value)
VALUES: dict[int, tuple[int, int, Callable[[random.Random], bytes]]] = {
    datum.INT2: (2, 2, lambda rng: rng.randbytes(2)),
    datum.INT4: (4, 4, lambda rng: rng.randbytes(4)),
    datum.INT8: (8, 8, some_i64),
    datum.OID: (4, 4, lambda rng: rng.randbytes(4)),
    datum.BOOL: (1, 1, lambda rng: rng.choice((b"\0", b"\1"))),
    datum.TEXT: (-1, 4, lambda rng: rng.choice(TEXTS).encode()),
    datum.JSON: (-1, 4, lambda rng: json.dumps(rng.choice(TEXTS)).encode()),
    datum.DATE: (4, 4, some_date),
    datum.TIMESTAMP: (8, 8, some_time),
    datum.TIMESTAMPTZ: (8, 8, some_time),
    datum.NUMERIC: (-1, 4, some_numeric),
    datum.UUID: (16, 1, lambda rng: rng.randbytes(16)),
    datum.FLOAT4: (4, 4, some_float4),
    datum.FLOAT8: (8, 8, some_float8),
    datum.BYTEA: (-1, 4, lambda rng: rng.randbytes(rng.randint(0, 40))),
}


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def heap_tuple(rng: random.Random, oids: list[int]) -> bytes:
    """A tuple from infomask2 on. Some values are NULL; varlena have both kinds of headers."""
    values, bitmap = b"", 0
    for number, oid in enumerate(oids):
        length, align, make = VALUES[oid]
        if rng.random() < 0.1:
            continue
        bitmap |= 1 << number
        value = make(rng)
        if length == -1 and len(value) < 126 and rng.random() < 0.8:
            values += bytes([(len(value) + 1) << 1 | 1]) + value
            continue
        values += bytes(-len(values) % align)
        values += struct.pack("<I", (len(value) + 4) << 2) + value if length == -1 else value
    size = (len(oids) + 7) // 8
    hoff = (23 + size + 7) & ~7
    header = struct.pack("<HHB", len(oids), 1, hoff) + bitmap.to_bytes(size, "little")
    return header + bytes(hoff - 23 - size) + values


def test_same_as_single_values(rng: random.Random) -> None:
    oids = [oid for oid in VALUES for _ in range(2)]
    rng.shuffle(oids)
    columns = tuple(
        Column(f"c{number} \"'", oid, -1, VALUES[oid][0], VALUES[oid][1], False, False, None, None)
        for number, oid in enumerate(oids)
    )
    table = Table(1, 1, "public", "t", 0, 0, (), columns)
    stored = [heap_tuple(rng, oids) for _ in range(ROWS)]
    shown = []
    for is_compiled in (True, False):
        form = TableFormat.of(table, Datums({}), is_compiled=is_compiled)
        cells = cells_of(form, stored)
        assert cells.notes == {}
        shown.append(cells.json(range(len(columns))).to_pylist())
        if is_compiled:
            assert (cells.state == PRINT).mean() > 0.6
    assert shown[0] == shown[1]


def cells_of(form: TableFormat, stored: list[bytes]) -> Cells:
    length = np.array([len(each) for each in stored], np.int64)
    at = np.cumsum([0, *length[:-1]])
    data = np.frombuffer(bytearray().join(stored), np.uint8)
    toast = ToastChunks(ChunkIndex.joined([]), bytes_of(data))
    columns = range(len(form.table.columns))
    return read_cells(form, data, at, length, at * 0, toast, columns)


def test_every_kind_is_tried() -> None:
    form = [tuple_print.NO_KIND] + [
        int(TableFormat.of(table_of(oid), Datums({})).kinds[0]) for oid in VALUES
    ]
    assert sorted(set(form)) == list(range(16))


def table_of(oid: int) -> Table:
    column = Column("a", oid, -1, *VALUES[oid][:2], False, False, None, None)
    return Table(1, 1, "public", "t", 0, 0, (), (column,))
