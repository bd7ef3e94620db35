"""Record boundaries: positions at which a range of WAL can end so that all its records are whole.

Law: an offset of a stream is a boundary. Then reading can continue in the page of the offset, and
every record that starts below the offset ends below it.
"""

from __future__ import annotations

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.spark.inputs.wal_input import LostWal, WalInput
from quorum_wal.walrecords.record_index import RecordIndexer, as_boundary


def next_boundary(
    wal_input: WalInput, facts: ServerFacts, start_lsn: int, end_lsn: int, bytes_max: int | None
) -> int:
    """The end of a batch of about `bytes_max` that begins at the boundary `start_lsn`, in WAL up to
    `end_lsn`. Returns `start_lsn` if no record is whole.

    A batch of more than a segment ends at the first record of a segment, which needs only the first
    pages of that segment. Raises LostWal if the first record cannot be read.
    """
    target_lsn = end_lsn if bytes_max is None else min(end_lsn, start_lsn + bytes_max)
    if target_lsn == end_lsn and wal_input.ends_at_record:
        return end_lsn
    seg_size = facts.wal_seg_size
    segment_lsn = target_lsn - target_lsn % seg_size
    if start_lsn < segment_lsn and target_lsn < end_lsn:
        first_lsn = _first_boundary(wal_input, facts, segment_lsn, end_lsn)
        if first_lsn is not None:
            return first_lsn
    while start_lsn < segment_lsn:
        try:
            boundary = _last_boundary(wal_input, facts, segment_lsn, target_lsn, target_lsn)
        except LostWal:
            boundary = None  # the WAL before it may be whole
        if boundary is not None:
            return boundary
        segment_lsn -= seg_size
    return _last_boundary(wal_input, facts, start_lsn, target_lsn, end_lsn) or start_lsn


def _indexer(facts: ServerFacts, start_lsn: int, end_lsn: int | None) -> RecordIndexer:
    return RecordIndexer(
        start_lsn,
        end_lsn,
        wal_seg_size=facts.wal_seg_size,
        version_major=facts.pg_major,
        system_id=facts.system_id,
        is_boundary=True,
    )


def _first_boundary(
    wal_input: WalInput, facts: ServerFacts, segment_lsn: int, end_lsn: int
) -> int | None:
    """The first boundary at or after the start of a segment; None if none can be found."""
    indexer = _indexer(facts, segment_lsn, segment_lsn + 1)
    try:
        for chunk in wal_input.read(segment_lsn, end_lsn):
            for at in range(0, len(chunk.data), WAL_PAGE_SIZE):
                indexer.feed(chunk.data[at : at + WAL_PAGE_SIZE])
                if indexer.failure is not None:
                    return None
                if indexer.is_done:
                    return indexer.next_lsn
    except LostWal:
        return None
    return None


def _last_boundary(
    wal_input: WalInput, facts: ServerFacts, start_lsn: int, target_lsn: int, end_lsn: int
) -> int | None:
    """The last boundary after `start_lsn` and at most at `target_lsn`; otherwise the first one up
    to `end_lsn`. Raises LostWal if there is none because the WAL ends or is damaged."""
    indexer = _indexer(facts, start_lsn, None)
    boundary = None
    lost: LostWal | None = None
    try:
        for chunk in wal_input.read(indexer.fed_lsn, end_lsn):
            index = indexer.feed(chunk.data)
            ends = index.end_lsn[index.end_lsn <= target_lsn]
            boundary = int(ends[-1]) if len(ends) else boundary
            if boundary is None and len(index):
                return int(index.end_lsn[0])
            if indexer.failure is not None:
                lost = LostWal(indexer.failure.lsn, f"{chunk.name}: {indexer.failure}")
            is_known = boundary is not None and indexer.fed_lsn >= target_lsn
            if is_known or lost is not None:
                break
    except LostWal as error:
        lost = error
    if boundary is None and lost is not None:
        raise lost
    return boundary


def boundary_at(wal_input: WalInput, facts: ServerFacts, lsn: int, end_lsn: int) -> int:
    """The start of the first record that starts at or after `lsn`; otherwise the end of the last
    whole record, in WAL up to `end_lsn`. The start of a segment always is a boundary, because the
    rest of an older record is skipped. Raises LostWal."""
    if lsn % facts.wal_seg_size == 0:
        return lsn
    indexer = RecordIndexer(
        lsn,
        wal_seg_size=facts.wal_seg_size,
        version_major=facts.pg_major,
        system_id=facts.system_id,
    )
    for chunk in wal_input.read(indexer.fed_lsn, end_lsn):
        index = indexer.feed(chunk.data)
        if len(index):
            return as_boundary(int(index.start_lsn[0]), facts.wal_seg_size)
        if indexer.failure is not None:
            raise LostWal(indexer.failure.lsn, f"{indexer.failure}, in {chunk.name}")
    return indexer.next_lsn
