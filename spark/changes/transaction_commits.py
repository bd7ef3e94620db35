"""The transactions that commit in a piece of the WAL: their xids and those of subtransactions.

A message that is not transactional is shown where it is, like a transaction that commits there. It
is an entry without an xid and without a time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quorum_wal.spark.changes.heap_fields import (
    ABORT,
    COMMIT,
    COMMIT_PREPARED,
    LSN,
    MARK_FIELDS,
    MARK_KIND,
    MARK_LSN,
    MARK_TIME_US,
    MARK_XID,
    MESSAGE,
    OPERATION,
    SUBXIDS,
    SUBXIDS_AT,
    XID,
    marks_of,
)
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.logical_messages import NO_XID
from quorum_wal.walrecords.record_index import Array


@dataclass(frozen=True, slots=True)
class Commits:
    """In commit order. `member_xids` are sorted; each belongs to the commit `member_commits`. The
    xid of a message that is not transactional is NO_XID, which is not among `member_xids`."""

    lsn: Array
    xid: Array
    time_us: Array
    is_prepared: Array
    member_xids: Array
    member_commits: Array

    def __len__(self) -> int:
        return len(self.lsn)

    def numbers_of(self, xids: Array) -> Array:
        """The number of each xid's transaction, or -1 if it does not commit here."""
        if len(self.member_xids) == 0:
            return np.full(len(xids), -1, np.int64)
        place = np.searchsorted(self.member_xids, xids)
        place[place == len(self.member_xids)] = 0
        found: Array = np.where(self.member_xids[place] == xids, self.member_commits[place], -1)
        return found

    def numbers_of_changes(self, changes: Array) -> Array:
        """The number of each change's transaction, or -1. A message that is not transactional has
        a number of its own, if its LSN is in the piece."""
        numbers = self.numbers_of(changes[XID])
        alone = _alone(changes)
        if len(alone) and len(self):
            place = np.minimum(np.searchsorted(self.lsn, changes[LSN, alone]), len(self) - 1)
            numbers[alone] = np.where(self.lsn[place] == changes[LSN, alone], place, -1)
        return numbers

    def with_messages(self, lsns: Array) -> Commits:
        """With an entry for each of these messages."""
        count = len(lsns)
        all_lsns = np.concatenate((self.lsn, lsns))
        order = np.argsort(all_lsns, kind="stable")
        rank = np.empty(len(order), np.int64)
        rank[order] = np.arange(len(order))
        return Commits(
            all_lsns[order],
            np.concatenate((self.xid, np.full(count, NO_XID, np.int64)))[order],
            np.concatenate((self.time_us, np.zeros(count, np.int64)))[order],
            np.concatenate((self.is_prepared, np.zeros(count, np.bool_)))[order],
            self.member_xids,
            rank[self.member_commits],
        )


def find_commits(scans: Iterable[HeapScan]) -> Commits:
    """All commits in these scans, which must be in the order of the WAL."""
    marks, subxids, owners, messages = [], [], [], []
    count = 0
    for scan in scans:
        found = marks_of(scan.marks, (COMMIT, COMMIT_PREPARED))
        marks.append(found)
        messages.append(scan.changes[LSN, _alone(scan.changes)])
        for i in np.flatnonzero(found[SUBXIDS]).tolist():
            subxids.append(subxids_of(scan, found, i))
            owners.append(np.full(len(subxids[-1]), count + i, np.int64))
        count += found.shape[1]
    all_marks = np.concatenate(marks, axis=1) if marks else np.empty((MARK_FIELDS, 0), np.int64)
    xids = np.concatenate([all_marks[MARK_XID], *subxids])
    numbers = np.concatenate([np.arange(count), *owners])
    order = np.argsort(xids, kind="stable")
    commits = Commits(
        all_marks[MARK_LSN],
        all_marks[MARK_XID],
        all_marks[MARK_TIME_US],
        all_marks[MARK_KIND] == COMMIT_PREPARED,
        xids[order],
        numbers[order],
    )
    return commits.with_messages(np.concatenate(messages)) if any(map(len, messages)) else commits


def _alone(changes: Array) -> Array:
    """The messages that are not transactional."""
    return np.flatnonzero((changes[OPERATION] == MESSAGE) & (changes[XID] == NO_XID))


def ended_xids(scan: HeapScan) -> Array:
    """The xids of all transactions and subtransactions that commit or abort in the scan."""
    found = marks_of(scan.marks, (COMMIT, COMMIT_PREPARED, ABORT))
    subxids = [subxids_of(scan, found, i) for i in np.flatnonzero(found[SUBXIDS]).tolist()]
    return np.concatenate([found[MARK_XID], *subxids])


def subxids_of(scan: HeapScan, marks: Array, i: int) -> Array:
    """The xids of the subtransactions of mark `i` of the scan's marks."""
    at, length = int(marks[SUBXIDS_AT, i]), 4 * int(marks[SUBXIDS, i])
    return scan.index.data[at : at + length].copy().view("<u4").astype(np.int64)
