"""`Ghost`: the log of one ballot, recorded independently of the cores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.history import TimelineHistory

from .log import START_LSN, Log

if TYPE_CHECKING:
    from .incarnation import Incarnation

#: (first byte, ballot that wrote it first), ascending.
Origins = list[tuple[int, NodeId]]


@dataclass(eq=False, slots=True)
class Ghost:
    """The donor's log at the election, and from `term_start_lsn` on the WAL of the primary."""

    node_id: NodeId
    log: Log
    origins: Origins
    term_start_lsn: int
    tli_history: TimelineHistory = field(default_factory=lambda: TimelineHistory(1))
    owner: Incarnation | None = None
    is_leading: bool = False
    #: The position up to which it was compared with commits of older ballots, and its own commit.
    agreed_lsn: int = START_LSN
    reported_lsn: int = START_LSN

    def at(self, end_lsn: int) -> Ghost:
        """The same log up to that position."""
        origins = clipped(self.origins, end_lsn)
        return Ghost(self.node_id, self.log.cut(end_lsn), origins, self.term_start_lsn)

    def origin_of(self, lsn: int) -> NodeId:
        """The ballot that wrote the byte at `lsn` first."""
        return max((origin for start_lsn, origin in self.origins if start_lsn <= lsn))


def clipped(origins: Origins, end_lsn: int) -> Origins:
    """Only ballots that wrote a byte below `end_lsn`."""
    return [(start_lsn, origin) for start_lsn, origin in origins if start_lsn < end_lsn]
