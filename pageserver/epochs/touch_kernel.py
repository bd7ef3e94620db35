"""The compiled loop over records that collects the pages touched by each record.

    relations        n x 3 u32: tablespace, database, number
    relation_slots   a hash table of their rows, -1 where empty
    keys, flags      a hash table of touched pages: their key + 1, 0 where empty

    key   relation (27 bits) | kind of the fork (2) | block (32): keys sort in the order of layers

Law: only the *first* touch of a page counts. Redo needs no base page if that touch is an applied
full-page image, or a page that the record initialises; otherwise it does. Up to release 18,
clearing bits of the visibility map is not a block reference, so it is derived from heap records.
Sources: Postgres `access/heapam_xlog.h`, `heapam_xlog.c`, `visibilitymap.c`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from quorum_wal.pageserver.layers.fork import ForkKind
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, lent, load_u32
from quorum_wal.walrecords.record_survey import FORK_MASK, HAS_IMAGE, WILL_INIT

#: flag of a touched page: redo reads the page before the WAL replaces all of it
NEEDS_BASE = 1

KIND_SHIFT, RELATION_SHIFT = 32, 34
VM_KIND = int(ForkKind.VM)
FSM_KIND = int(ForkKind.FSM)
#: (BLCKSZ - page header) * 8 / 2 bits: heap pages covered by one page of the visibility map
VM_HEAP_BLOCKS = (8192 - 24) * 4

#: rows of `counts`
RELATIONS, TOUCHES, RARE, COUNTS = range(4)

_XLOG, _XACT, _SMGR, _DATABASE, _TABLESPACE, _HEAP2, _HEAP = 0, 1, 2, 4, 5, 9, 10
_CUSTOM_RMGR_MIN = 128
_CHECKPOINT_SHUTDOWN, _CHECKPOINT_ONLINE, _PARAMETER_CHANGE = 0x0, 0x1, 0x6  # info >> 4
_XACT_COMMIT, _XACT_ABORT, _XACT_COMMIT_PREPARED, _XACT_ABORT_PREPARED = 0x0, 0x2, 0x3, 0x4
_XACT_HAS_INFO, _XACT_OPMASK, _XINFO_HAS_RELATIONS = 0x8, 0x7, 4
_HEAP_OPMASK = 0x7
_HEAP_INSERT, _HEAP_DELETE, _HEAP_UPDATE, _HEAP_HOT_UPDATE, _HEAP_LOCK = 0x0, 0x1, 0x2, 0x4, 0x6
_HEAP2_MULTI_INSERT, _HEAP2_LOCK_UPDATED = 0x5, 0x6


class TouchTables(NamedTuple):
    """Large enough for the records of the next call: half of each hash table stays empty."""

    relations: Numbers  # uint32, n x 3
    relation_slots: Numbers  # int32, -1 where empty
    keys: Numbers  # uint64
    flags: Numbers  # uint8
    counts: Numbers  # int64


@njit(cache=True, nogil=True)
def note_touches(
    data: Bytes, at: Numbers, record: Numbers, length: Numbers, operation: Numbers,
    main_length: Numbers, block_offsets: Numbers, header_at: Numbers, relation_at: Numbers,
    number_at: Numbers, apply_mask: Int, tables: TouchTables, rare: Numbers,
) -> None:  # fmt: skip
    """Notes the pages of all records. Writes the rows of records to be read in Python to `rare`,
    and their number to `counts[RARE]`."""
    relations, relation_slots, keys, flags, counts = tables
    data, relations, relation_slots = lent(data), lent(relations), lent(relation_slots)
    keys, flags, counts = lent(keys), lent(flags), lent(counts)
    counts[RARE] = 0
    last_at = np.int64(-1)
    relation = np.int64(0)
    for row in range(len(operation)):
        rmgr, op = operation[row] >> 4, operation[row] & 0x0F
        for block in range(block_offsets[row], block_offsets[row + 1]):
            place, header = relation_at[block], header_at[block]
            if last_at < 0 or not _is_same(data, place, last_at):
                relation = _find_relation(data, place, relations, relation_slots, counts)
            last_at = place
            head = data[header + 1]
            if head & FORK_MASK != FSM_KIND:
                is_whole = head & WILL_INIT != 0
                if head & HAS_IMAGE and data[header + 8] & apply_mask:
                    is_whole = True
                _touch(
                    relation, head & FORK_MASK, load_u32(data, number_at[block]), is_whole,
                    keys, flags, counts,
                )  # fmt: skip
        if rmgr in (_HEAP, _HEAP2):
            main_at = at[record[row]] + length[row] - main_length[row]
            first, second = cleared_blocks(data, main_at, main_length[row], rmgr, op)
            begin, end = block_offsets[row], block_offsets[row + 1]
            for index in range(2):
                if (first if index == 0 else second) and end > begin:
                    # The old page of an update is its second block, or the first if they are equal.
                    block = min(begin + index, end - 1)
                    relation = _find_relation(
                        data, relation_at[block], relations, relation_slots, counts
                    )
                    last_at = relation_at[block]
                    heap_block = np.int64(load_u32(data, number_at[block]))
                    _touch(
                        relation, VM_KIND, heap_block // VM_HEAP_BLOCKS, False, keys, flags, counts
                    )
        elif _is_rare(data, at[record[row]] + length[row], main_length[row], rmgr, op):
            rare[counts[RARE]] = row
            counts[RARE] += 1


@njit(cache=True, nogil=True)
def _is_rare(data: Bytes, end: Int, main_length: Int, rmgr: Int, op: Int) -> bool:
    if rmgr == _XACT:
        what = op & _XACT_OPMASK
        if (
            what not in (_XACT_COMMIT, _XACT_ABORT, _XACT_COMMIT_PREPARED, _XACT_ABORT_PREPARED)
            or not op & _XACT_HAS_INFO
            or main_length < 12
        ):
            return False
        return bool(load_u32(data, end - main_length + 8) & _XINFO_HAS_RELATIONS)
    if rmgr == _XLOG:
        return op in (_CHECKPOINT_SHUTDOWN, _CHECKPOINT_ONLINE, _PARAMETER_CHANGE)
    return rmgr in (_SMGR, _DATABASE, _TABLESPACE) or rmgr >= _CUSTOM_RMGR_MIN


@njit(cache=True, nogil=True)
def cleared_blocks(
    data: Bytes, main_at: Int, main_length: Int, rmgr: Int, op: Int
) -> tuple[bool, bool]:
    """Whether redo clears bits of the visibility map for the first and for the second block."""
    what = op & _HEAP_OPMASK
    if rmgr == _HEAP2:
        if what == _HEAP2_MULTI_INSERT and main_length >= 1:
            return bool(data[main_at] & 1), False
        if what == _HEAP2_LOCK_UPDATED and main_length >= 8:
            return data[main_at + 7] & 1 != 0, False
        return False, False
    if what == _HEAP_INSERT and main_length >= 3:
        return data[main_at + 2] & 1 != 0, False
    if what in (_HEAP_DELETE, _HEAP_LOCK) and main_length >= 8:
        return data[main_at + 7] & 1 != 0, False
    if what in (_HEAP_UPDATE, _HEAP_HOT_UPDATE) and main_length >= 8:
        return data[main_at + 7] & 2 != 0, data[main_at + 7] & 1 != 0
    return False, False


@njit(cache=True, nogil=True, forceinline=True)
def _is_same(data: Bytes, at: Int, other: Int) -> bool:
    return bool(
        load_u32(data, at + 8) == load_u32(data, other + 8)
        and load_u32(data, at + 4) == load_u32(data, other + 4)
        and load_u32(data, at) == load_u32(data, other)
    )


@njit(cache=True, nogil=True, forceinline=True)
def _slot_of(key: Int, slots: Int) -> Int:
    """The first slot to search for `key` in a table of `slots` slots, a power of two."""
    mixed = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    return np.int64((mixed >> np.uint64(20)) & np.uint64(slots - 1))


@njit(cache=True, nogil=True, forceinline=True)
def _relation_slot(tablespace: Int, database: Int, number: Int, slots: Int) -> Int:
    mixed = np.uint64(number) ^ np.uint64(database) << np.uint64(32) ^ np.uint64(tablespace)
    return _slot_of(mixed, slots)


@njit(cache=True, nogil=True)
def _find_relation(
    data: Bytes, place: Int, relations: Numbers, slots: Numbers, counts: Numbers
) -> Int:
    """The row of the relation whose three numbers are at `place`."""
    return find_relation(
        load_u32(data, place), load_u32(data, place + 4), load_u32(data, place + 8),
        relations, slots, counts,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def find_relation(
    tablespace: Int, database: Int, number: Int, relations: Numbers, slots: Numbers, counts: Numbers
) -> Int:
    """The row of the relation, which is added if it is new."""
    slot = _relation_slot(tablespace, database, number, len(slots))
    while slots[slot] >= 0:
        row = slots[slot]
        if (
            relations[row, 2] == number
            and relations[row, 1] == database
            and relations[row, 0] == tablespace
        ):
            return np.int64(row)
        slot = (slot + 1) & (len(slots) - 1)
    row = counts[RELATIONS]
    relations[row, 0], relations[row, 1], relations[row, 2] = tablespace, database, number
    slots[slot] = row
    counts[RELATIONS] = row + 1
    return np.int64(row)


@njit(cache=True, nogil=True)
def _touch(
    relation: Int, kind: Int, block: Int, is_whole: Int, keys: Numbers, flags: Numbers,
    counts: Numbers,
) -> None:  # fmt: skip
    key = (
        np.uint64(relation) << np.uint64(RELATION_SHIFT)
        | np.uint64(kind) << np.uint64(KIND_SHIFT)
        | np.uint64(block)
    ) + np.uint64(1)
    slot = _slot_of(key, len(keys))
    while keys[slot] != 0:
        if keys[slot] == key:
            return
        slot = (slot + 1) & (len(keys) - 1)
    keys[slot], flags[slot] = key, 0 if is_whole else NEEDS_BASE
    counts[TOUCHES] += 1


@njit(cache=True, nogil=True)
def touch(
    relation: Int, kind: Int, block: Int, keys: Numbers, flags: Numbers, counts: Numbers
) -> None:
    """Notes a page that redo reads although no block reference names it."""
    _touch(relation, kind, block, False, keys, flags, counts)


@njit(cache=True, nogil=True)
def refill_touches(old_keys: Numbers, old_flags: Numbers, keys: Numbers, flags: Numbers) -> None:
    """Copies the entries of a table to a larger one."""
    for old in range(len(old_keys)):
        if old_keys[old] == 0:
            continue
        slot = _slot_of(old_keys[old], len(keys))
        while keys[slot] != 0:
            slot = (slot + 1) & (len(keys) - 1)
        keys[slot], flags[slot] = old_keys[old], old_flags[old]


@njit(cache=True, nogil=True)
def refill_relations(relations: Numbers, count: Int, slots: Numbers) -> None:
    """Fills a larger table of relation slots."""
    for row in range(count):
        tablespace, database, number = relations[row, 0], relations[row, 1], relations[row, 2]
        slot = _relation_slot(tablespace, database, number, len(slots))
        while slots[slot] >= 0:
            slot = (slot + 1) & (len(slots) - 1)
        slots[slot] = row
