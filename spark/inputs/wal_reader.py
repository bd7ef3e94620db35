"""Reads a range of an input as Arrow batches. Every task of every job uses it.

    range          |<-- start_lsn ............. end_lsn -->|
    read  |segment or page                                 | ... the rest of the last record|

Laws. A record belongs to the range in which it starts, so every split of a range gives the same
records. Where WAL is lost (`LostWal`), the reader fails, stops, or skips the rest of the segment. A
skip is reported as a row with operation GAP, whose lsn and end_lsn are the skipped range, and whose
other columns are null. A gap ends with its segment, so splits at segments give the same gaps.
Memory is limited by the size of a piece and by the longest record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.wal_input import LostWal, WalInput
from quorum_wal.spark.records.wal_decoder import WalDecoder
from quorum_wal.spark.records.wal_filter import WalFilter
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS, schema_of
from quorum_wal.walrecords.compiled_cache import share_compilation
from quorum_wal.walrecords.record_index import RecordIndex, RecordIndexer

#: in bytes of WAL; its rows need several times as much
PIECE_BYTES = 128 * WAL_PAGE_SIZE
GAP = "GAP"


class OnDamage(Enum):
    """What to do where WAL is lost."""

    FAIL = "fail"
    STOP = "stop"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class WalRange:
    """Records that start in [start_lsn, end_lsn).

    `limit_lsn` is the end of the input, which the last record may need. `is_boundary` says that a
    record starts or ends at `start_lsn`, so that nothing below its page must be read.
    """

    start_lsn: int
    end_lsn: int
    limit_lsn: int
    is_boundary: bool = False


@dataclass(frozen=True, slots=True)
class Gap:
    """[lsn, end_lsn) is lost; `reason` names the file."""

    lsn: int
    end_lsn: int
    reason: str


def read_records(
    wal_input: WalInput,
    wal_range: WalRange,
    *,
    columns: Sequence[str] = DEFAULT_COLUMNS,
    wal_filter: WalFilter | None = None,
    on_damage: OnDamage = OnDamage.FAIL,
) -> Iterator[pa.RecordBatch]:
    """Batches of `schema_of(columns)`, none of them empty. Raises SparkWalError."""
    facts = wal_input.facts()
    decoder = WalDecoder(facts.pg_major, columns, wal_filter or WalFilter())
    for found in read_indexes(wal_input, facts, wal_range, on_damage):
        try:
            batch = gap_row(found, columns) if isinstance(found, Gap) else decoder.decode(found)
        except WalFormatError as error:
            raise WalInputError(str(error)) from error
        if batch.num_rows:
            yield batch


def read_indexes(
    wal_input: WalInput,
    facts: ServerFacts,
    wal_range: WalRange,
    on_damage: OnDamage = OnDamage.FAIL,
) -> Iterator[RecordIndex | Gap]:
    """The records before they are decoded. Raises WalInputError."""
    share_compilation()
    start_lsn, is_boundary = wal_range.start_lsn, wal_range.is_boundary
    while start_lsn < wal_range.end_lsn:
        indexer = RecordIndexer(
            start_lsn,
            wal_range.end_lsn,
            wal_seg_size=facts.wal_seg_size,
            version_major=facts.pg_major,
            system_id=facts.system_id,
            is_boundary=is_boundary,
        )
        try:
            yield from _whole_records(wal_input, wal_range, indexer)
            return
        except LostWal as lost:
            next_lsn, seg_size = indexer.next_lsn, facts.wal_seg_size
            if lost.lsn < next_lsn and next_lsn % seg_size == 0:
                start_lsn, is_boundary = next_lsn, True
                continue  # no WAL was expected there: it is after an XLOG_SWITCH
            if on_damage is OnDamage.STOP:
                return
            if on_damage is OnDamage.FAIL:
                raise
            end_lsn = next_lsn - next_lsn % seg_size + seg_size
            yield Gap(max(start_lsn, next_lsn), end_lsn, str(lost))
            start_lsn, is_boundary = end_lsn, False


def gap_row(gap: Gap, columns: Sequence[str]) -> pa.RecordBatch:
    values = {"lsn": gap.lsn, "end_lsn": gap.end_lsn, "operation": GAP}
    schema = schema_of(columns)
    arrays = [pa.array([values.get(field.name)], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _whole_records(
    wal_input: WalInput, wal_range: WalRange, indexer: RecordIndexer
) -> Iterator[RecordIndex]:
    """Raises LostWal, which names the source, after all records before it have been returned."""
    end_lsn, name = wal_range.end_lsn, ""
    for chunk in wal_input.read(indexer.fed_lsn, wal_range.limit_lsn):
        name = chunk.name
        for at in range(0, len(chunk.data), PIECE_BYTES):
            index = indexer.feed(memoryview(chunk.data)[at : at + PIECE_BYTES])
            if len(index):
                yield index
            if indexer.is_done or indexer.next_lsn >= end_lsn:
                return
            if indexer.failure is not None:
                lsn, reason = indexer.failure.lsn, str(indexer.failure)
                raise LostWal(lsn, f"{reason}, in {name}")
    next_lsn = indexer.next_lsn
    if wal_input.ends_at_record and next_lsn < wal_range.limit_lsn:
        text = f"record at {format_lsn(next_lsn)} continues after {format_lsn(wal_range.limit_lsn)}"
        raise LostWal(next_lsn, f"{text}, where the WAL of {name} ends")
