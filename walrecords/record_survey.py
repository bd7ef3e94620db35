"""`survey_records`: one pass over the contents of records that finds the position of each part.

    header | block 0 | block 1 | origin | xid | main | image 0 | data 0 | image 1 .. | main data
           ^header_at    ^relation_at, number_at                                     ^main_at

It does not depend on the requested columns, which are gathered from these positions later.
It accepts exactly what `pgwal.block_ref` accepts, which also reports the error.
Source: Postgres `access/xlogrecord.h`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from quorum_wal.pgwal.block_ref import BLOCK_ID_MAX, BLOCK_SIZE
from quorum_wal.pgwal.record import RECORD_HEADER_SIZE
from quorum_wal.pgwal.versions import WalVersion
from quorum_wal.walrecords.filter_tables import FilterTables, is_among
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, lent, load_u16, load_u32, load_u64
from quorum_wal.walrecords.pool_array import pool_array
from quorum_wal.walrecords.record_index import RecordIndex
from quorum_wal.walrecords.transaction import (
    ENDS,
    RM_XACT_ID,
    TOP_XID,
    XactFormat,
    is_end,
    read_end,
    xact_format,
)

_ID_DATA_SHORT = 255
_ID_DATA_LONG = 254
_ID_ORIGIN = 253
_ID_TOPLEVEL_XID = 252

FORK_MASK = 0x0F
HAS_IMAGE = 0x10
HAS_DATA = 0x20
WILL_INIT = 0x40
_SAME_RELATION = 0x80
_IMAGE_HAS_HOLE = 0x01

#: of `bimg_info` in a block header with an image: id, flags, data length, image length, hole offset
IMAGE_INFO_OFFSET = 8

#: No block header is shorter: id, flags, data length, block number.
_BLOCK_HEADER_SIZE_MIN = 8

#: the size of an invalid header: larger than any record
_TOO_LONG = 1 << 40


class RecordFacts(NamedTuple):
    """One element for each row. `block_offsets` has one more: row i has blocks [i] to [i + 1]."""

    record: Numbers  # int64: its number in the index
    length: Numbers  # int64
    xid: Numbers  # int64
    prev_lsn: Numbers  # int64
    operation: Numbers  # uint16: rmgr id << 4 | the upper bits of info
    main_length: Numbers  # int64
    top_xid: Numbers  # int64, 0 if the record does not have it
    fpi_count: Numbers  # int32
    fpi_bytes: Numbers  # int64
    block_offsets: Numbers  # int32


class BlockPlaces(NamedTuple):
    """One element for each block reference; int32, because a batch has less than 2 GiB."""

    header_at: Numbers
    relation_at: Numbers
    number_at: Numbers


class BlockFormat(NamedTuple):
    """The differences between versions: top-level xids, and the bits of compression."""

    has_toplevel_xid: bool
    compression_mask: int


def block_format(version: WalVersion) -> BlockFormat:
    return BlockFormat(version.has_toplevel_xid, sum(version.image_compression))


def record_facts(count: int) -> RecordFacts:
    """Room for `count` records."""
    return RecordFacts(
        record=pool_array(count, np.int64),
        length=pool_array(count, np.int64),
        xid=pool_array(count, np.int64),
        prev_lsn=pool_array(count, np.int64),
        operation=pool_array(count, np.uint16),
        main_length=pool_array(count, np.int64),
        top_xid=pool_array(count, np.int64),
        fpi_count=pool_array(count, np.int32),
        fpi_bytes=pool_array(count, np.int64),
        block_offsets=pool_array(count + 1, np.int32),
    )


def first_rows(facts: RecordFacts, count: int) -> RecordFacts:
    """The facts of the first `count` records."""
    *each, block_offsets = facts
    return RecordFacts._make([*(values[:count] for values in each), block_offsets[: count + 1]])


def block_places(length: int) -> BlockPlaces:
    """Room for the block references in `length` bytes of records."""
    count = length // _BLOCK_HEADER_SIZE_MIN
    return BlockPlaces._make(np.empty(count, np.int32) for _ in BlockPlaces._fields)


class RecordSurvey(NamedTuple):
    """The survey of an index. `bad` is the first record with invalid content, or -1. The next
    survey overwrites `places`. `xact_rows`: the rows of the Transaction manager."""

    facts: RecordFacts
    places: BlockPlaces
    xact_rows: Numbers
    bad: int


class RecordSurveyor:
    """survey_records() with memory that is reused."""

    def __init__(self, version: WalVersion, passes: FilterTables) -> None:
        self.xact_format = xact_format(version)
        self._block_format = block_format(version)
        self._passes = passes
        self._places = block_places(0)

    @property
    def compression_mask(self) -> int:
        """The bits of `bimg_info` that a compressed image has."""
        return self._block_format.compression_mask

    def survey(self, index: RecordIndex) -> RecordSurvey:
        """Surveys the records that pass the filter."""
        if len(self._places.header_at) < len(index.data) // _BLOCK_HEADER_SIZE_MIN:
            self._places = block_places(len(index.data))
        facts = record_facts(len(index))
        xact_rows = pool_array(len(index) + 1, np.int64)
        count, xact_count, bad = survey_records(
            index.data, index.at, self._block_format, self.xact_format, self._passes,
            facts, self._places, xact_rows,
        )  # fmt: skip
        return RecordSurvey(first_rows(facts, count), self._places, xact_rows[:xact_count], bad)


@njit(cache=True, nogil=True)
def survey_records(
    data: Bytes, at: Numbers, form: BlockFormat, xact_form: XactFormat, passes: FilterTables,
    facts: RecordFacts, places: BlockPlaces, xact_rows: Numbers,
) -> tuple[Int, Int, Int]:  # fmt: skip
    """(number of rows, number of `xact_rows`, the first bad record or -1).

    Common cases are inlined, at a third of the cost: each array that is taken from a tuple, or
    passed to a function without `lent`, costs an increment and a decrement of its reference count.
    """
    records, lengths, xids, prev_lsns, operations = facts[:5]
    main_lengths, top_xids, fpi_counts, fpi_lengths, block_offsets = facts[5:]
    header_at, relation_at, number_at = places
    data, rmgrs = lent(data), passes.rmgrs
    filters = len(passes.relations) + len(passes.databases) + len(passes.xids) > 0
    row = xact_count = first_block = block_offsets[0] = 0
    for record in range(len(at)):
        begin = at[record]
        rmgr_id = data[begin + 17]
        if not rmgrs[rmgr_id]:
            continue
        length, place = np.int64(load_u32(data, begin)), begin + RECORD_HEADER_SIZE
        end = begin + length
        payload = main_length = top_xid = fpi_count = fpi_bytes = np.int64(0)
        last_id = last_relation_at = np.int64(-1)
        block = first_block
        while end - place > payload:
            fragment_id = data[place]
            if fragment_id > BLOCK_ID_MAX:
                size, value = _read_number(data, place, end, form)
                place += size
                if fragment_id >= _ID_DATA_LONG:
                    main_length, payload = value, payload + value
                    break
                if fragment_id == _ID_TOPLEVEL_XID:
                    top_xid = value
                continue
            if (
                fragment_id <= last_id
                or place + _BLOCK_HEADER_SIZE_MIN > end
                or (load_u16(data, place + 2) > 0) != (data[place + 1] & HAS_DATA != 0)
            ):
                return row, xact_count, record
            flags, data_length = data[place + 1], load_u16(data, place + 2)
            header_at[block], last_id = place, fragment_id
            place, payload = place + 4, payload + data_length
            if flags & HAS_IMAGE:
                size, value = _read_image(data, place, end, form)
                place, payload = place + size, payload + value
                fpi_count, fpi_bytes = fpi_count + 1, fpi_bytes + value
            if not flags & _SAME_RELATION:
                last_relation_at, place = place, place + 12
            if last_relation_at < 0 or place + 4 > end:
                return row, xact_count, record
            relation_at[block], number_at[block] = last_relation_at, place
            place, block = place + 4, block + 1
        if end - place != payload:
            return row, xact_count, record
        if filters and not _passes(
            data, begin, end - main_length, top_xid, xact_form, passes,
            relation_at[first_block:block],
        ):  # fmt: skip
            continue
        records[row], lengths[row], xids[row] = record, length, load_u32(data, begin + 4)
        operations[row] = np.uint16(rmgr_id) << 4 | data[begin + 16] >> 4
        prev_lsns[row], main_lengths[row] = np.int64(load_u64(data, begin + 8)), main_length
        top_xids[row], fpi_counts[row], fpi_lengths[row] = top_xid, fpi_count, fpi_bytes
        xact_rows[xact_count], block_offsets[row + 1] = row, block
        xact_count += rmgr_id == RM_XACT_ID
        row, first_block = row + 1, block
    return row, xact_count, -1


@njit(cache=True, nogil=True, forceinline=True)
def _read_number(data: Bytes, at: Int, end: Int, form: BlockFormat) -> tuple[Int, Int]:
    """A header that is not of a block: (its size, the number in it)."""
    fragment_id = data[at]
    size, value = np.int64(_TOO_LONG), np.int64(0)
    if fragment_id == _ID_DATA_SHORT:
        if at + 2 <= end:
            size, value = np.int64(2), np.int64(data[at + 1])
    elif fragment_id == _ID_ORIGIN:
        size = np.int64(3)
    elif (
        fragment_id == _ID_DATA_LONG or (fragment_id == _ID_TOPLEVEL_XID and form.has_toplevel_xid)
    ) and at + 5 <= end:
        size, value = np.int64(5), np.int64(load_u32(data, at + 1))
    return size, value


@njit(cache=True, nogil=True, forceinline=True)
def _read_image(data: Bytes, at: Int, end: Int, form: BlockFormat) -> tuple[Int, Int]:
    """(size of the image's header, length of the image)."""
    bad = np.int64(_TOO_LONG), np.int64(0)
    if at + 5 > end:
        return bad
    length, hole_offset = np.int64(load_u16(data, at)), load_u16(data, at + 2)
    info = data[at + 4]
    is_compressed, has_hole = info & form.compression_mask != 0, info & _IMAGE_HAS_HOLE != 0
    size = np.int64(5)
    hole_length = BLOCK_SIZE - length
    if is_compressed:
        hole_length = np.int64(0)
        if has_hole:
            if at + 7 > end:
                return bad
            hole_length = np.int64(load_u16(data, at + 5))
            size = np.int64(7)
    if length > BLOCK_SIZE or (has_hole or is_compressed) != (length < BLOCK_SIZE):
        return bad
    if has_hole != (hole_length > 0) or has_hole != (hole_offset > 0):
        return bad
    return size, length


@njit(cache=True, nogil=True)
def _passes(
    data: Bytes, begin: Int, main_at: Int, top_xid: Int, form: XactFormat,
    passes: FilterTables, relation_at: Numbers,
) -> bool:  # fmt: skip
    """Whether a record passes the filter. `relation_at`: the relations of its blocks."""
    _, relations, databases, xids = passes
    is_place = len(relations) == 0 and len(databases) == 0
    for place in relation_at:
        at = np.int64(place)
        is_database = len(databases) == 0 or is_among(databases, load_u32(data, at + 4))
        is_relation = len(relations) == 0 or is_among(relations, load_u32(data, at + 8))
        is_place = is_place or (is_database and is_relation)
    if not is_place or len(xids) == 0:
        return bool(is_place)
    if is_among(xids, load_u32(data, begin + 4)) or (top_xid != 0 and is_among(xids, top_xid)):
        return True
    if data[begin + 17] != RM_XACT_ID or not is_end(data, begin):
        return False
    found = np.zeros(ENDS, np.int64)
    end = begin + np.int64(load_u32(data, begin))
    return bool(
        read_end(data, begin, main_at, end, form, found)
        and found[TOP_XID] != 0
        and is_among(xids, found[TOP_XID])
    )
