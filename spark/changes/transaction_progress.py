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

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from spark.changes.transaction_commits import Commits
from spark.changes.transaction_glance import Glance
from walrecords.record_index import Array

#: what comes before a place, the last segment first: (where it begins, glances in their order)
Backwards = Iterable[tuple[int, list[Glance]]]


@dataclass(slots=True)
class OpenTransactions:
    """At the place up to which it was advanced."""

    since_lsn: int
    #: may have changes before since_lsn; None: none but prepared ones
    running: frozenset[int] | None = None
    #: False: nothing has told yet, and any may
    is_told: bool = False
    #: there is no WAL before since_lsn
    is_cut_off: bool = True
    first_lsns: dict[int, int] = field(default_factory=dict)

    @classmethod
    def look_back(cls, place_lsn: int, backwards: Backwards) -> OpenTransactions:
        """At `place_lsn`, from the last record before it that lists them."""
        ended = [np.empty(0, np.int64)]
        found = cls(place_lsn)
        for begin_lsn, glances in backwards:
            found.since_lsn = begin_lsn
            for glance in reversed(glances):
                ended.append(glance.ended_xids)
                found.first_lsns.update(_open_changes(glance, np.concatenate(ended)))
                if glance.lists:
                    found.since_lsn, found.running = glance.lists[-1].lsn, glance.lists[-1].running
                    found.is_told, found.is_cut_off = True, False
                    return found
        return found

    def advance(self, glance: Glance) -> None:
        """To behind the piece, which begins where this stands."""
        if not self.is_told and glance.lists:
            self.is_told, self.running = True, glance.lists[0].running
        for xid, lsn in _open_changes(glance, glance.ended_xids).items():
            self.first_lsns.setdefault(xid, lsn)
        if self.first_lsns:
            for xid in glance.ended_xids.tolist():
                self.first_lsns.pop(xid, None)

    def first_lsn(self, xids: Iterable[int], place_lsn: int) -> int:
        """Where the first change is of these transactions; `place_lsn` if they have none yet."""
        known = (self.first_lsns[xid] for xid in self.first_lsns.keys() & set(xids))
        return min(known, default=place_lsn)

    def begun_before(self, commits: Commits) -> Array:
        """Which of these may have changes before `since_lsn`."""
        if not self.is_told:
            return np.ones(len(commits), np.bool_)
        return _open_among(commits, self.running)


def last_list_without(xids: frozenset[int], backwards: Backwards) -> int | None:
    """The last place that tells which transactions are open, and none of these; None if there is
    none."""
    for _, glances in backwards:
        for glance in reversed(glances):
            for each in reversed(glance.lists):
                if each.running is not None and not each.running & xids:
                    return each.lsn
    return None


def last_redo(backwards: Backwards) -> int | None:
    """Where the last checkpoint began whose record is there; None if there is none."""
    for _, glances in backwards:
        for glance in reversed(glances):
            if glance.redo_lsn is not None:
                return glance.redo_lsn
    return None


def begun_later(glances: Iterable[Glance], commits: Commits) -> Array:
    """Of which transactions it is proven that they begin somewhere in these, or behind."""
    proven = np.zeros(len(commits), np.bool_)
    for glance in glances:
        for each in glance.lists:
            proven |= (commits.lsn > each.lsn) & ~_open_among(commits, each.running)
    return proven


def _open_among(commits: Commits, running: frozenset[int] | None) -> Array:
    if running is None:
        return commits.is_prepared
    return np.isin(commits.xid, np.array(sorted(running), np.int64))


def _open_changes(glance: Glance, ended: Array) -> dict[int, int]:
    """xid: its first change, of those that have not ended."""
    is_open = ~np.isin(glance.changing_xids, ended)
    xids, lsns = glance.changing_xids[is_open], glance.first_lsns[is_open]
    return dict(zip(xids.tolist(), lsns.tolist(), strict=True))
