"""A log as `spark` reads it: indexed in chunks of any length, and decoded to a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
from wal_folder import WalFolder

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.record import Record
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker
from quorum_wal.spark.records.wal_decoder import WalDecoder
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.walrecords.record_index import RecordIndex, RecordIndexer, as_boundary

MIB = 1 << 20

#: start, end, bytes
Span = tuple[int, int, bytes]

#: records, the reason for the end, the end of the last one
Walk = tuple[list[Span], str, int]


def spans_of(records: Sequence[Record]) -> list[Span]:
    return [(record.start_lsn, record.end_lsn, record.data) for record in records]


def walk_by_index(
    wal: bytes | bytearray, wal_lsn: int, indexer: RecordIndexer, chunk_bytes: Callable[[], int]
) -> Walk:
    """The records of the indexer in the WAL that begins at `wal_lsn`."""
    spans: list[Span] = []
    try:
        at = indexer.fed_lsn - wal_lsn
        while at < len(wal) and not indexer.is_done:
            chunk = wal[at : at + chunk_bytes()]
            spans += _spans(indexer.feed(chunk))
            at += len(chunk)
        if indexer.failure is not None:
            raise indexer.failure
    except WalFormatError as error:
        return spans, str(error), indexer.next_lsn
    return spans, "", indexer.next_lsn


def _spans(index: RecordIndex) -> Iterator[Span]:
    data = index.data.tobytes()
    places = zip(index.at.tolist(), index.start_lsn.tolist(), index.end_lsn.tolist(), strict=True)
    for at, start_lsn, end_lsn in places:
        length = int.from_bytes(data[at : at + 4], "little")
        yield start_lsn, end_lsn, data[at : at + length]


def walk_by_walker(wal: bytes | bytearray, wal_lsn: int, folder: WalFolder) -> Walk:
    """The records of RecordWalker in it."""
    walker = RecordWalker(
        wal_lsn,
        wal_seg_size=folder.wal_seg_size,
        version_major=folder.major,
        skip_continuation=True,
    )
    records, error_text = [], ""
    try:
        walker.feed(wal)
        while (record := walker.next()) is not NEED_DATA:
            records.append(record)
    except WalFormatError as error:
        error_text = str(error)
    # Before its first record the walker may report the position after the page's header.
    return spans_of(records), error_text, as_boundary(walker.record_end_lsn, folder.wal_seg_size)


def decode_folder(
    folder: WalFolder, columns: Sequence[str], wal_filter: WalFilter | None = None
) -> pa.Table:
    """All records that pass the filter, in one table."""
    indexer = RecordIndexer(
        folder.start_lsn, wal_seg_size=folder.wal_seg_size, version_major=folder.major
    )
    decoder = WalDecoder(folder.major, columns, wal_filter or WalFilter())
    batches = []
    for at in range(0, len(folder.wal), MIB):
        batches.append(decoder.decode(indexer.feed(folder.wal[at : at + MIB])))
        if indexer.failure is not None:
            break
    table = pa.Table.from_batches(batches)
    table.validate(full=True)
    return table
