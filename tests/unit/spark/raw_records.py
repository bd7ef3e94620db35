"""Hand-made records, and an index of them as RecordIndexer would create it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.record import HEADER, Record
from quorum_wal.walrecords.record_index import RecordIndex

START_LSN = 0x1000028
RELATION = struct.pack("<III", 1663, 5, 16384)


def raw_record(
    body: bytes, *, rmgr_id: int = 10, info: int = 0, xid: int = 700, prev_lsn: int = 0x1000000
) -> bytes:
    """A header without a checksum, followed by `body`."""
    return HEADER.pack(HEADER.size + len(body), xid, prev_lsn, info, rmgr_id, 0) + body


def main_data(data: bytes) -> bytes:
    """Main data with its header, if nothing is between the two."""
    if len(data) < 256:
        return struct.pack("<BB", 255, len(data)) + data
    return struct.pack("<BI", 254, len(data)) + data


def index_of(records: Sequence[bytes], start_lsn: int = START_LSN) -> RecordIndex:
    """Adjacent records, as if there were no pages."""
    padded = [record.ljust(len(record) + 7 & ~7, b"\0") for record in records]
    lengths = np.array([len(record) for record in padded], np.int64)
    end = np.cumsum(lengths)
    at = end - lengths
    return RecordIndex(
        np.frombuffer(bytearray().join(padded), np.uint8),
        at,
        at + start_lsn,
        end + start_lsn,
        np.full(len(records), 1, np.int32),
    )


def record_of(raw: bytes, start_lsn: int = START_LSN) -> Record:
    """The record in the form of the pure decoder."""
    length, xid, prev_lsn, info, rmgr_id, _ = HEADER.unpack_from(raw)
    end_lsn = Lsn(start_lsn + (length + 7 & ~7))
    return Record(Lsn(start_lsn), end_lsn, length, Lsn(prev_lsn), xid, rmgr_id, info, raw)
