"""A new timeline: its ids, the facts of its server, and the control state that every member has."""

from __future__ import annotations

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.control_state import ControlState
from tests.wal_log import PG_VERSION, SYSTEM_ID, WAL_SEG_SIZE

SERVER = ServerFacts(SYSTEM_ID, PG_VERSION, WAL_SEG_SIZE)
TIMELINE = TimelineId(b"tenant".ljust(16, b"\0"), b"timeline".ljust(16, b"\0"))
#: Of the data directory that contains the timeline.
INSTANCE = b"instance"


def first_membership(*members: int) -> Membership:
    """The membership of a timeline that was just created; the identities of the members are unknown
    yet."""
    return Membership(Stamp.FIRST, members)


def new_control_state(membership: Membership, server: ServerFacts = SERVER) -> ControlState:
    """The state after its creation: an empty log that begins with the second segment."""
    start_lsn = server.wal_seg_size
    return ControlState(
        timeline=TIMELINE,
        server=server,
        active=True,
        membership=membership,
        promised=NodeId.ZERO,
        term_history=TermHistory.initial(start_lsn),
        tli_history=TimelineHistory(1),
        timeline_start_lsn=start_lsn,
        local_start_lsn=start_lsn,
        commit_lsn=start_lsn,
        truncate_lsn=start_lsn,
        flush_lsn=start_lsn,
    )
