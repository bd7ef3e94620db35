"""Which transactions are open at a place of the WAL, and where each of them made its first change.

    running xacts: {7}        |            known: 8 began here, 9 there, and 7 before `since_lsn`
    -------o--7---8--o--7--9--|
           ^ since_lsn        ^ place

Postgres writes down which transactions are open every 15 seconds, and with each checkpoint; from
the last such record on, the changes themselves tell. Law: this is found from the WAL alone, so any
range can be read by anybody, without what was read before. Source: Postgres `LogStandbySnapshot` in
`standby.c`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from spark.heap_scan import (
    CHECKPOINT_SHUTDOWN,
    LSN,
    MARK_KIND,
    MARK_LSN,
    MARK_RECORD,
    RUNNING_XACTS,
    XID,
    HeapScan,
)
from spark.record_index import Array
from spark.transaction_commits import Commits, ended_xids
from spark.transaction_marks import parse_running

#: pieces of WAL that come before a place, the last one first: (where a piece begins, its scans)
Backwards = Iterable[tuple[int, list[HeapScan]]]


@dataclass(slots=True)
class OpenTransactions:
    """At the place up to which it was advanced."""

    since_lsn: int
    #: open at since_lsn, with changes that may be before it; None: prepared ones, or any
    running: frozenset[int] | None
    #: whether `running` is None because the WAL begins there, and not for a shutdown
    is_cut_off: bool = False
    first_lsns: dict[int, int] = field(default_factory=dict)

    @classmethod
    def look_back(cls, place_lsn: int, backwards: Backwards) -> OpenTransactions:
        """At `place_lsn`, from the last record before it that lists them."""
        ended = [np.empty(0, np.int64)]
        found = cls(place_lsn, None, is_cut_off=True)
        for begin_lsn, scans in backwards:
            last = max(_lists(scans), default=None, key=lambda each: each[0])
            found.since_lsn = begin_lsn
            if last is not None:
                found.since_lsn, found.running, found.is_cut_off = *last, False
            for scan in reversed(scans):
                ended.append(ended_xids(scan))
                xids, lsns = _first_changes(scan, found.since_lsn)
                is_open = ~np.isin(xids, np.concatenate(ended))
                found.first_lsns.update(
                    zip(xids[is_open].tolist(), lsns[is_open].tolist(), strict=True)
                )
            if last is not None:
                break
        return found

    def advance(self, scan: HeapScan) -> None:
        """To behind the scan, which begins where this stands."""
        ended = ended_xids(scan)
        xids, lsns = _first_changes(scan, 0)
        is_open = ~np.isin(xids, ended)
        for xid, lsn in zip(xids[is_open].tolist(), lsns[is_open].tolist(), strict=True):
            self.first_lsns.setdefault(xid, lsn)
        if self.first_lsns:
            for xid in ended.tolist():
                self.first_lsns.pop(xid, None)

    def first_lsn(self, xids: Iterable[int], place_lsn: int) -> int:
        """Where the first change is of these transactions; `place_lsn` if they have none yet."""
        known = (self.first_lsns[xid] for xid in self.first_lsns.keys() & set(xids))
        return min(known, default=place_lsn)

    def begun_before(self, commits: Commits) -> Array:
        """Which of these may have changes before `since_lsn`."""
        if self.running is not None:
            return np.isin(commits.xid, list(self.running))
        return np.ones(len(commits), np.bool_) if self.is_cut_off else commits.is_prepared


def last_list_without(xids: frozenset[int], backwards: Backwards) -> int | None:
    """The last record that lists open transactions, and none of these; None if there is none."""
    for _, scans in backwards:
        without = [
            lsn for lsn, running in _lists(scans) if running is not None and not running & xids
        ]
        if without:
            return max(without)
    return None


def begun_later(scans: Iterable[HeapScan], commits: Commits) -> Array:
    """Of which transactions the scans prove that they begin somewhere in them, or behind."""
    proven = np.zeros(len(commits), np.bool_)
    for lsn, running in _lists(scans):
        is_open = commits.is_prepared if running is None else np.isin(commits.xid, list(running))
        proven |= (commits.lsn > lsn) & ~is_open
    return proven


def _first_changes(scan: HeapScan, from_lsn: int) -> tuple[Array, Array]:
    """(xids, where the first change of each is)."""
    begin = int(np.searchsorted(scan.changes[LSN], from_lsn))
    xids, places = np.unique(scan.changes[XID, begin:], return_index=True)
    return xids, scan.changes[LSN, begin:][places]


def _lists(scans: Iterable[HeapScan]) -> Iterator[tuple[int, frozenset[int] | None]]:
    """(where, which transactions were open); None: none but prepared ones."""
    for scan in scans:
        telling = np.isin(scan.marks[MARK_KIND], (RUNNING_XACTS, CHECKPOINT_SHUTDOWN))
        marks = scan.marks[[MARK_LSN, MARK_KIND, MARK_RECORD]][:, telling]
        for lsn, kind, record in marks.T.tolist():
            is_list = kind == RUNNING_XACTS
            yield lsn, parse_running(scan.body(record).main_data) if is_list else None
