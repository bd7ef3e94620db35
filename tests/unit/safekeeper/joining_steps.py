"""Safekeeper 4 joins and leaves the timeline of 1, 2 and 3: the offers and memberships for that."""

from __future__ import annotations

from acceptor_steps import A, history, stamped
from new_timeline import SERVER
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.pgwal.history import TimelineHistory

SAFEKEEPER_ID = 4
#: Where its log begins: two segments after the timeline's start.
JOIN_LSN = START_LSN + 2 * WAL_SEG_SIZE
ROSTER = tuple(Member(i, bytes([i]) * 8, f"10.0.0.{i}", 5454, "here") for i in (1, 2, 3))
OUTSIDE = Membership(Stamp.FIRST, (1, 2, 3), (), ROSTER)


def offer_of(
    node_id: NodeId = A, generation: int = 1, start_lsn: int = JOIN_LSN, **fields: object
) -> TimelineOffer:
    """Of `node_id`, whose term began with the timeline."""
    facts: dict[str, object] = {
        "server": SERVER,
        "start_lsn": start_lsn,
        "timeline_start_lsn": START_LSN,
        "node_id": node_id,
        "membership": stamped(node_id, generation, OUTSIDE),
        "term_history": history((node_id, START_LSN)),
        "tli_history": TimelineHistory(1),
    }
    return TimelineOffer(**(facts | fields))  # type: ignore[arg-type]


def with_four(node_id: NodeId, generation: int) -> Membership:
    """Joint: 4 will be a member."""
    new = (*ROSTER, Member(SAFEKEEPER_ID, b"instance", "10.0.0.4", 5454))
    return OUTSIDE.joint_with(Stamp(node_id, generation), new)


def without_four(node_id: NodeId, generation: int) -> Membership:
    return stamped(node_id, generation, OUTSIDE)
