"""The ends of transactions: COMMIT, ABORT, PREPARE and the two *_PREPARED, in compiled loops.

    COMMIT, ABORT    time 8 | xinfo 4 | db 8 | subxids 4+4n | relations 4+12n | stats 4+..n
                     | invalidations 4+16n | xid 4 | gid, a zero byte | origin 16
                     xinfo is present if `info` says so, each other part if xinfo says so
    PREPARE          magic, length, xid, database 4 each | time 8 | owner 4 | number of subxids 4
                     | other numbers | length of the gid 2 | origin 16 | gid | subxids | ..
                     gid, subxids and later parts begin at multiples of 8

Statistics are new in 15; an item grew from 12 to 16 bytes in 18. Source: Postgres `access/xact.h`,
ParseCommitRecord, ParseAbortRecord and ParsePrepareRecord in `xactdesc.c`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from quorum_wal.pgwal.versions import WalVersion
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, load_u16, load_u32, load_u64

RM_XACT_ID = 1
_OPMASK = 0x70
_COMMIT, _PREPARE, _ABORT, _COMMIT_PREPARED, _ABORT_PREPARED = 0x00, 0x10, 0x20, 0x30, 0x40
_HAS_INFO = 0x80

_HAS_DBINFO, _HAS_SUBXACTS, _HAS_RELATIONS, _HAS_INVALIDATIONS = 1, 2, 4, 8
_HAS_TWOPHASE, _HAS_ORIGIN, _HAS_GID, _HAS_DROPPED_STATS = 16, 32, 128, 256
_ORIGIN_SIZE = 16

#: 2000-01-01, Postgres's epoch, in microseconds of Unix
_EPOCH_US = 946_684_800_000_000

#: the facts of an end, as columns of an array
(
    ROW, TIME_US, TOP_XID, SUBXIDS_AT, SUBXIDS, GID_AT, GID_LENGTH, INVALIDATIONS_AT, INVALIDATIONS,
    RELATIONS_AT, RELATIONS, ENDS,
) = range(12)  # fmt: skip


class XactFormat(NamedTuple):
    """The differences between versions, in bytes; `stats_item_size` is 0 without statistics."""

    stats_item_size: int
    prepare_size: int
    gid_length_offset: int


def xact_format(version: WalVersion) -> XactFormat:
    if version.major < 15:
        return XactFormat(0, 64, 46)
    return XactFormat(12 if version.major < 18 else 16, 72, 54)


@njit(cache=True, nogil=True)
def read_ends(
    data: Bytes, at: Numbers, main_length: Numbers, rows: Numbers, form: XactFormat, ends: Numbers
) -> tuple[Int, Int]:
    """Fills `ends` with one line for each of `rows` that ends a transaction. Returns their number,
    and the row that has another length than it says, or -1."""
    count = 0
    for row in rows:
        begin = at[row]
        if not is_end(data, begin):
            continue
        end = begin + np.int64(load_u32(data, begin))
        ends[count, ROW] = row
        if not read_end(data, begin, end - main_length[row], end, form, ends[count]):
            return count, row
        count += 1
    return count, -1


@njit(cache=True, nogil=True)
def is_end(data: Bytes, begin: Int) -> bool:
    """Whether a record of the Transaction manager ends a transaction, or prepares it."""
    return bool(data[begin + 16] & _OPMASK <= _ABORT_PREPARED)


@njit(cache=True, nogil=True)
def read_end(
    data: Bytes, begin: Int, main_at: Int, end: Int, form: XactFormat, found: Numbers
) -> bool:
    """Fills `found`. Returns False if the record at `begin` has another length than it says."""
    if data[begin + 16] & _OPMASK == _PREPARE:
        return bool(_read_prepare(data, main_at, end, form, found))
    return bool(_read_commit(data, begin, main_at, end, form, found))


@njit(cache=True, nogil=True)
def _read_commit(
    data: Bytes, begin: Int, main_at: Int, end: Int, form: XactFormat, found: Numbers
) -> bool:
    info = data[begin + 16]
    operation = info & _OPMASK
    is_commit = operation in (_COMMIT, _COMMIT_PREPARED)
    at, xinfo = main_at + 8, np.int64(0)
    if info & _HAS_INFO:
        at += 4
    if at > end:
        return False
    if info & _HAS_INFO:
        xinfo = np.int64(load_u32(data, at - 4))
    found[TIME_US] = np.int64(load_u64(data, main_at)) + _EPOCH_US
    # An ABORT may be of a subtransaction, and does not say so.
    found[TOP_XID] = load_u32(data, begin + 4) if operation == _COMMIT else 0
    found[SUBXIDS] = found[GID_LENGTH] = found[INVALIDATIONS] = found[RELATIONS] = 0
    if xinfo & _HAS_DBINFO:
        at += 8
    if xinfo & _HAS_SUBXACTS:
        found[SUBXIDS_AT] = at + 4
        found[SUBXIDS] = _count(data, at, end)
        at = _behind_items(data, at, end, 4)
    if xinfo & _HAS_RELATIONS:
        found[RELATIONS_AT] = at + 4
        found[RELATIONS] = _count(data, at, end)
        at = _behind_items(data, at, end, 12)
    if xinfo & _HAS_DROPPED_STATS and form.stats_item_size > 0:
        at = _behind_items(data, at, end, form.stats_item_size)
    if xinfo & _HAS_INVALIDATIONS and is_commit:
        found[INVALIDATIONS_AT] = at + 4
        found[INVALIDATIONS] = _count(data, at, end)
        at = _behind_items(data, at, end, 16)
    if xinfo & _HAS_TWOPHASE:
        found[TOP_XID] = _count(data, at, end)
        at += 4
    if xinfo & _HAS_GID:
        found[GID_AT] = at
        while at < end and data[at] != 0:
            at += 1
        found[GID_LENGTH] = at - found[GID_AT]
        at += 1
    if xinfo & _HAS_ORIGIN:
        at += _ORIGIN_SIZE
    return bool(at == end)


@njit(cache=True, nogil=True)
def _count(data: Bytes, at: Int, end: Int) -> Int:
    return np.int64(load_u32(data, at)) if at + 4 <= end else np.int64(0)


@njit(cache=True, nogil=True)
def _behind_items(data: Bytes, at: Int, end: Int, item_size: Int) -> Int:
    """The offset after a count at `at` and its items; after `end` if they are not all there."""
    if at + 4 > end:
        return end + 1
    return at + 4 + np.int64(load_u32(data, at)) * item_size


@njit(cache=True, nogil=True)
def _read_prepare(data: Bytes, main_at: Int, end: Int, form: XactFormat, found: Numbers) -> bool:
    gid_at = main_at + form.prepare_size
    if gid_at > end:
        return False
    found[TOP_XID] = load_u32(data, main_at + 8)
    found[TIME_US] = np.int64(load_u64(data, main_at + 16)) + _EPOCH_US
    found[SUBXIDS] = load_u32(data, main_at + 28)
    gid_length = np.int64(load_u16(data, main_at + form.gid_length_offset))
    found[GID_AT] = gid_at
    found[INVALIDATIONS] = found[RELATIONS] = 0
    found[GID_LENGTH] = max(0, gid_length - 1)  # it ends with a zero byte
    found[SUBXIDS_AT] = gid_at + (gid_length + 7 & ~7)
    return bool(found[SUBXIDS_AT] + found[SUBXIDS] * 4 <= end)
