"""Which ballot wrote the log from where: the history that shows where two logs diverge.

    log      |======== bytes of (0, zero) ========|== (1, a) ==|==== (3, b) ====>
    entries  ((0, zero), start_lsn)                ((1, a), lsn) ((3, b), lsn)


Laws: NodeIds strictly ascend, starts never descend, and the same NodeId always has the same start,
because a ballot is won at most once. A history may contain ballots whose first byte the local log
does not have yet; so every reader clips it to the local flush_lsn first.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from quorum_wal.consensus.errors import HistoryError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.lsn import format_lsn


@dataclass(frozen=True, slots=True)
class TermStart:
    """The ballot `node_id` wrote the log from `start_lsn` on."""

    node_id: NodeId
    start_lsn: int

    def __str__(self) -> str:
        return f"{self.node_id}@{format_lsn(self.start_lsn)}"


@dataclass(frozen=True, slots=True)
class TermHistory:
    """An immutable list of TermStart, oldest first; never empty once a timeline exists."""

    entries: tuple[TermStart, ...]

    def __post_init__(self) -> None:
        for older, newer in pairwise(self.entries):
            if not (older.node_id < newer.node_id and older.start_lsn <= newer.start_lsn):
                raise HistoryError(f"term history out of order: {older} is followed by {newer}")

    @classmethod
    def initial(cls, start_lsn: int) -> TermHistory:
        """The history with which every member of a new timeline is created."""
        return cls((TermStart(NodeId.ZERO, start_lsn),))

    def clipped(self, flush_lsn: int) -> TermHistory:
        """Only the ballots that a log ending at `flush_lsn` can contain."""
        return TermHistory(tuple(e for e in self.entries if e.start_lsn <= flush_lsn))

    def last_log_node_id(self, flush_lsn: int) -> NodeId:
        """NodeId of the last entry with start_lsn <= flush_lsn; NodeId.ZERO if there is none."""
        reached = [e.node_id for e in self.entries if e.start_lsn <= flush_lsn]
        return reached[-1] if reached else NodeId.ZERO

    def extended(self, node_id: NodeId, start_lsn: int) -> TermHistory:
        """The history of a ballot that continues this log. Raises HistoryError."""
        return TermHistory((*self.entries, TermStart(node_id, start_lsn)))

    def __str__(self) -> str:
        return " ".join(map(str, self.entries))


def highest_common_point(
    proposer: TermHistory, safekeeper: TermHistory, safekeeper_flush_lsn: int
) -> int:
    """The end of the common prefix of both logs, where streaming to the safekeeper must begin.

    `safekeeper` must be clipped to `safekeeper_flush_lsn`. Both sides compute this, and the
    safekeeper refuses an Elected with another point. Raises HistoryError if the histories have no
    common entry, or different starts for one ballot. Neither happens to logs of one timeline.
    """
    common = -1
    for ours, theirs in zip(proposer.entries, safekeeper.entries, strict=False):
        if ours.node_id != theirs.node_id:
            break
        if ours.start_lsn != theirs.start_lsn:
            raise HistoryError(f"one ballot has two starts: {ours} and {theirs}")
        common += 1
    if common < 0:
        raise HistoryError(f"term histories have nothing in common: {proposer} and {safekeeper}")
    ends = [safekeeper_flush_lsn]
    for history in (proposer, safekeeper):
        if common + 1 < len(history.entries):
            ends.append(history.entries[common + 1].start_lsn)
    return min(ends)
