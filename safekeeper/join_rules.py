"""JOIN_TIMELINE and LEAVE_TIMELINE: the durable state that follows. Pure.

    no such timeline --JOIN--> has the log from start_lsn on --LEAVE--> has left --JOIN--> ...

Laws. A safekeeper that the membership names is a member and is given no log: if it had lost its
own, it would also have lost its promises (condition A3). A safekeeper that has left keeps promise
and membership, and refuses lesser ones (A2). A safekeeper that is named keeps its log (A3).
"""

from __future__ import annotations

from dataclasses import replace

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.segment import check_wal_seg_size
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.safekeeper.refusals import WRONG_STATE, departure, membership_refusal

INVALID_PARAMETER = "22023"
DUPLICATE_OBJECT = "42710"


def joined(
    safekeeper_id: int, timeline: TimelineId, offer: TimelineOffer, existing: ControlState | None
) -> ControlState:
    """The state after JOIN_TIMELINE; `existing` itself if the request was served before. Raises
    TimelineError, WalError."""
    _check_offer(safekeeper_id, offer)
    if existing is not None:
        if _is_answered(existing, offer):
            return existing
        _check_may_return(existing, offer)
    return ControlState(
        timeline=timeline,
        server=offer.server,
        active=True,
        membership=offer.membership,
        promised=offer.node_id,
        term_history=offer.term_history,
        tli_history=offer.tli_history,
        timeline_start_lsn=offer.timeline_start_lsn,
        local_start_lsn=offer.start_lsn,
        commit_lsn=offer.start_lsn,
        truncate_lsn=offer.start_lsn,
        flush_lsn=offer.start_lsn,
    )


def activated(control: ControlState) -> ControlState:
    """The state after ACTIVATE_TIMELINE, the second step of a creation. Raises TimelineError."""
    check_not_left(control)
    return replace(control, active=True)


def departed(safekeeper_id: int, control: ControlState, membership: Membership) -> ControlState:
    """The state after LEAVE_TIMELINE; `control` itself if the request was served before. Raises
    TimelineError."""
    if safekeeper_id in membership.all_members:
        raise TimelineError(
            f"safekeeper {safekeeper_id} must leave timeline {control.timeline}, but the "
            f"membership names it: {membership.all_members}",
            sqlstate=INVALID_PARAMETER,
        )
    _check_stamp(control.membership, membership)
    if control.has_left and control.membership == membership:
        return control
    start_lsn = control.timeline_start_lsn
    return replace(
        control,
        has_left=True,
        forced=False,
        active=True,
        membership=membership,
        local_start_lsn=start_lsn,
        commit_lsn=start_lsn,
        truncate_lsn=start_lsn,
        archived_lsn=0,
        remote_consistent_lsn=0,
        flush_lsn=start_lsn,
        lost_lsn=0,
    )


def check_not_left(control: ControlState) -> None:
    """For requests that need the log. Raises TimelineError, which names the present members."""
    if control.has_left:
        refusal = departure(control)
        raise TimelineError(refusal.message, hint=refusal.hint, sqlstate=refusal.sqlstate)


def _check_offer(safekeeper_id: int, offer: TimelineOffer) -> None:
    check_wal_seg_size(offer.server.wal_seg_size)
    wal_version(offer.server.pg_major)
    if offer.start_lsn <= 0 or offer.start_lsn % offer.server.wal_seg_size:
        raise TimelineError(
            f"start {format_lsn(offer.start_lsn)} is not a segment's start",
            sqlstate=INVALID_PARAMETER,
        )
    if safekeeper_id in offer.membership.all_members:
        raise TimelineError(
            f"safekeeper {safekeeper_id} is a member already, and a member is not given the log "
            "again",
            hint="If it lost its data, replace it: sk member replace, with a new id.",
            sqlstate=WRONG_STATE,
        )


def _is_answered(existing: ControlState, offer: TimelineOffer) -> bool:
    """The same offer was served before, and its answer was lost."""
    return not existing.has_left and (
        (existing.server, existing.timeline_start_lsn, existing.local_start_lsn)
        == (offer.server, offer.timeline_start_lsn, offer.start_lsn)
        and (existing.promised, existing.membership) == (offer.node_id, offer.membership)
    )


def _check_may_return(existing: ControlState, offer: TimelineOffer) -> None:
    if not existing.has_left:
        raise TimelineError(
            f"timeline {existing.timeline} exists already",
            hint="Stream to it as it is, or let it leave the timeline first.",
            sqlstate=DUPLICATE_OBJECT,
        )
    if (existing.server, existing.timeline_start_lsn) != (offer.server, offer.timeline_start_lsn):
        raise TimelineError(
            f"timeline {existing.timeline} was left here with other parameters",
            sqlstate=DUPLICATE_OBJECT,
        )
    if offer.node_id < existing.promised:
        raise TimelineError(
            f"timeline {existing.timeline} is offered by {offer.node_id}, but {existing.promised} "
            "was promised before it was left",
            sqlstate=WRONG_STATE,
        )
    _check_stamp(existing.membership, offer.membership)


def _check_stamp(own: Membership, membership: Membership) -> None:
    refusal = membership_refusal(own, membership)
    if refusal:
        raise TimelineError(refusal.message, hint=refusal.hint, sqlstate=refusal.sqlstate)
