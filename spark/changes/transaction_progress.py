"""The transactions that are open at a position of the WAL, and the first change of each of them.

    running xacts: {7}        |            known: 8 and 9 began here, and 7 before `since_lsn`
    -------o--7---8--o--7--9--|
           ^ since_lsn        ^ position

Postgres logs the open transactions every 15 seconds and with each checkpoint. After the last such
record, the changes themselves show which transactions are open. Law: this is found from the WAL
alone, so any range can be read without knowledge of earlier reads. Source: Postgres
`LogStandbySnapshot` in `standby.c`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from quorum_wal.spark.changes.logical_messages import NO_XID
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.spark.changes.transaction_summary import TransactionSummary
from quorum_wal.walrecords.record_index import Array

#: the WAL before a position, the last segment first: (its start, summaries in order)
Backwards = Iterable[tuple[int, list[TransactionSummary]]]


@dataclass(slots=True)
class OpenTransactions:
    """The open transactions at the position up to which it was advanced."""

    since_lsn: int
    #: they may have changes before since_lsn; None: only prepared ones
    running: frozenset[int] | None = None
    #: False: no record has listed the open transactions yet, so any may be open
    is_known: bool = False
    #: no WAL exists before since_lsn
    is_cut_off: bool = True
    first_lsns: dict[int, int] = field(default_factory=dict)

    @classmethod
    def look_back(cls, place_lsn: int, backwards: Backwards) -> OpenTransactions:
        """The state at `place_lsn`, from the last record before it that lists open transactions."""
        ended = [np.empty(0, np.int64)]
        found = cls(place_lsn)
        for begin_lsn, summaries in backwards:
            found.since_lsn = begin_lsn
            for summary in reversed(summaries):
                ended.append(summary.ended_xids)
                found.first_lsns.update(_open_changes(summary, np.concatenate(ended)))
                if summary.lists:
                    found.since_lsn, found.running = (
                        summary.lists[-1].lsn,
                        summary.lists[-1].running,
                    )
                    found.is_known, found.is_cut_off = True, False
                    return found
        return found

    def advance(self, summary: TransactionSummary) -> None:
        """Advances to the end of the piece, which must begin at the present position."""
        if not self.is_known and summary.lists:
            self.is_known, self.running = True, summary.lists[0].running
        for xid, lsn in _open_changes(summary, summary.ended_xids).items():
            self.first_lsns.setdefault(xid, lsn)
        if self.first_lsns:
            for xid in summary.ended_xids.tolist():
                self.first_lsns.pop(xid, None)

    def first_lsn(self, xids: Iterable[int], place_lsn: int) -> int:
        """The first change of these transactions; `place_lsn` if they have none yet."""
        known = (self.first_lsns[xid] for xid in self.first_lsns.keys() & set(xids))
        return min(known, default=place_lsn)

    def first_open(self, summaries: Iterable[TransactionSummary], place_lsn: int) -> int:
        """The first known change of the transactions that are open after these pieces, which follow
        the present position and end at `place_lsn`; that if there is none."""
        after = replace(self, first_lsns=dict(self.first_lsns))
        for summary in summaries:
            after.advance(summary)
        return min(after.first_lsns.values(), default=place_lsn)

    def begun_before(self, commits: Commits) -> Array:
        """Which of these may have changes before `since_lsn`."""
        is_transaction: Array = commits.xid != NO_XID
        return is_transaction if not self.is_known else _open_among(commits, self.running)


def last_list_without(xids: frozenset[int], backwards: Backwards) -> int | None:
    """The last position with a list of open transactions that has none of `xids`; None if there is
    none."""
    for _, summaries in backwards:
        for summary in reversed(summaries):
            for each in reversed(summary.lists):
                if each.running is not None and not each.running & xids:
                    return each.lsn
    return None


def last_redo(backwards: Backwards) -> int | None:
    """The redo LSN of the last checkpoint whose record exists; None if there is none."""
    for _, summaries in backwards:
        for summary in reversed(summaries):
            if summary.redo_lsn is not None:
                return summary.redo_lsn
    return None


def begun_later(summaries: Iterable[TransactionSummary], commits: Commits) -> Array:
    """Which of these transactions certainly begin in these pieces or later."""
    proven = np.zeros(len(commits), np.bool_)
    for summary in summaries:
        for each in summary.lists:
            proven |= (commits.lsn > each.lsn) & ~_open_among(commits, each.running)
    return proven


def _open_among(commits: Commits, running: frozenset[int] | None) -> Array:
    if running is None:
        return commits.is_prepared
    return np.isin(commits.xid, np.array(sorted(running), np.int64))


def _open_changes(summary: TransactionSummary, ended: Array) -> dict[int, int]:
    """xid -> its first change, of those that have not ended."""
    is_open = ~np.isin(summary.changing_xids, ended)
    xids, lsns = summary.changing_xids[is_open], summary.first_lsns[is_open]
    return dict(zip(xids.tolist(), lsns.tolist(), strict=True))
