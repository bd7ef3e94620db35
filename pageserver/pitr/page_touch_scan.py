"""Finds the records that touch one page: block references, visibility map bits, its file.

    record -> block references of the page            BLOCK, IMAGE, INIT
              heap records that clear its bits        VM_CLEAR    (not a block reference)
              Storage CREATE, TRUNCATE of its file,
              ends of transactions that drop it       FILE

Sources: see `touch_kernel.py` and `touch_survey.py`.
"""

from __future__ import annotations

import struct
from enum import IntFlag

import numpy as np
from numba import njit

from quorum_wal.pageserver.epochs.touch_kernel import VM_HEAP_BLOCKS, VM_KIND, cleared_blocks
from quorum_wal.pageserver.epochs.touch_survey import dropped_relations
from quorum_wal.pageserver.errors import SurveyError
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u32
from quorum_wal.walrecords.record_index import RecordIndex
from quorum_wal.walrecords.record_survey import FORK_MASK, HAS_IMAGE, WILL_INIT, RecordSurvey

_XACT, _SMGR, _HEAP2, _HEAP = 1, 2, 9, 10
_SMGR_CREATE, _SMGR_TRUNCATE = 0x1, 0x2
_XACT_HAS_INFO, _XINFO_HAS_RELATIONS = 0x8, 4
_LOCATOR = struct.Struct("<III")


class Touch(IntFlag):
    """The effect of a record on the page."""

    BLOCK = 1
    IMAGE = 2
    INIT = 4
    VM_CLEAR = 8
    FILE = 16


def page_touches(
    index: RecordIndex, survey: RecordSurvey, fork: Fork, block: int
) -> list[tuple[int, Touch]]:
    """(row of the survey, effect) in the order of the records. Raises SurveyError."""
    facts, places = survey.facts, survey.places
    rows = np.empty(len(facts.record), np.int64)
    hows = np.empty(len(facts.record), np.uint8)
    count = _find(
        index.data, index.at, facts.record, facts.length, facts.operation, facts.main_length,
        facts.block_offsets, places.header_at, places.relation_at, places.number_at,
        fork.tablespace, fork.database, fork.number, int(fork.kind), block, rows, hows,
    )  # fmt: skip
    found = [
        (row, Touch(how))
        for row, how in zip(rows[:count].tolist(), hows[:count].tolist(), strict=True)
    ]
    rmgrs = facts.operation >> 4
    names_files = (
        (rmgrs == _XACT) & (facts.operation & _XACT_HAS_INFO != 0) & (facts.main_length >= 12)
    )
    rare = np.flatnonzero((rmgrs == _SMGR) | names_files).tolist()
    found += [(row, Touch.FILE) for row in rare if _is_of_file(index, survey, row, fork)]
    return sorted(found)


def _is_of_file(index: RecordIndex, survey: RecordSurvey, row: int, fork: Fork) -> bool:
    """Of a Storage record, or the end of a transaction with more information."""
    facts = survey.facts
    rmgr, op = divmod(int(facts.operation[row]), 16)
    main_length = int(facts.main_length[row])
    record = int(facts.record[row])
    end = int(index.at[record]) + int(facts.length[row])
    main = index.data[end - main_length : end].tobytes()
    wanted = fork.tablespace, fork.database, fork.number
    try:
        if rmgr == _SMGR:
            if op == _SMGR_CREATE:
                return struct.unpack_from("<IIIi", main) == (*wanted, int(fork.kind))
            return op == _SMGR_TRUNCATE and _LOCATOR.unpack_from(main, 4) == wanted
        if not struct.unpack_from("<I", main, 8)[0] & _XINFO_HAS_RELATIONS:
            return False
        return wanted in dropped_relations(main)
    except struct.error as error:
        raise SurveyError(
            f"the record at {format_lsn(int(index.start_lsn[record]))} is too short: "
            f"{main_length} bytes of data"
        ) from error


@njit(cache=True, nogil=True)
def _find(
    data: Bytes, at: Numbers, record: Numbers, length: Numbers, operation: Numbers,
    main_length: Numbers, block_offsets: Numbers, header_at: Numbers, relation_at: Numbers,
    number_at: Numbers, tablespace: Int, database: Int, number: Int, kind: Int, block: Int,
    rows: Numbers, hows: Numbers,
) -> Int:  # fmt: skip
    """The number of records that touch the page by a block reference, or clear bits of it."""
    count = 0
    for row in range(len(operation)):
        how = 0
        begin, end = block_offsets[row], block_offsets[row + 1]
        rmgr, op = operation[row] >> 4, operation[row] & 0x0F
        first = second = False
        if kind == VM_KIND and (rmgr in (_HEAP, _HEAP2)) and end > begin:
            main_at = at[record[row]] + length[row] - main_length[row]
            first, second = cleared_blocks(data, main_at, main_length[row], rmgr, op)
        for reference in range(begin, end):
            place = relation_at[reference]
            if (
                load_u32(data, place + 8) != number
                or load_u32(data, place + 4) != database
                or load_u32(data, place) != tablespace
            ):
                continue
            head = data[header_at[reference] + 1]
            found = np.int64(load_u32(data, number_at[reference]))
            if head & FORK_MASK == kind and found == block:
                how |= 1
                if head & HAS_IMAGE:
                    how |= 2
                if head & WILL_INIT:
                    how |= 4
            # The old page of an update is its second block, or the first if they are equal.
            is_first = first and reference == begin
            is_second = second and reference == min(begin + 1, end - 1)
            if (is_first or is_second) and found // VM_HEAP_BLOCKS == block:
                how |= 8
        if how:
            rows[count], hows[count] = row, how
            count += 1
    return count
