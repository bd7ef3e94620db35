"""Why a safekeeper refuses a proposer's request: its rules as questions. Pure.

Each function returns None if there is no reason to refuse. The acceptor asks before it changes
anything; so do JOIN_TIMELINE and LEAVE_TIMELINE (`join_rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.consensus.errors import HistoryError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.consensus.messages import PROTOCOL_VERSION, Elected, ProposerGreeting
from quorum_wal.consensus.term_history import highest_common_point
from quorum_wal.consensus.tli_history import clipped_tli_history, first_difference
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.control_state import ControlState

PROTOCOL_VIOLATION = "08P01"
WRONG_STATE = "55000"
DATA_CORRUPTED = "XX001"
MISMATCH = "42P17"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error that the client gets."""

    sqlstate: str
    message: str
    hint: str = ""


def absence(control: ControlState) -> Refusal | None:
    """Why this timeline cannot take part: its creation did not finish, or it was left."""
    if control.has_left:
        return departure(control)
    if control.active:
        return None
    return Refusal(
        MISMATCH,
        f"timeline {control.timeline} is not active: its creation did not finish",
        "Run 'sk timeline create' (or 'sk attach') again.",
    )


def departure(control: ControlState) -> Refusal:
    """A safekeeper that has left answers everything but greetings with this."""
    return Refusal(
        WRONG_STATE,
        f"this safekeeper has left timeline {control.timeline}: its WAL was removed here",
        f"Present members, as far as known here: {members_in_words(control.membership)}.",
    )


def members_in_words(membership: Membership) -> str:
    """`2 at 10.0.0.2:5454, 4 at 10.0.0.4:5454`; of both sets if the membership is joint."""
    return ", ".join(map(_in_words, map(membership.member, membership.all_members)))


def _in_words(member: Member) -> str:
    return f"{member.id} at {member.address}" if member.address else str(member.id)


def greeting_refusal(control: ControlState, greeting: ProposerGreeting) -> Refusal | None:
    """A safekeeper that has left answers greetings, too: the answer names the present members."""
    ours, theirs = control.server, greeting.server
    if greeting.protocol_version != PROTOCOL_VERSION:
        return Refusal(
            MISMATCH,
            f"proposer uses protocol version {greeting.protocol_version}, "
            f"this safekeeper {PROTOCOL_VERSION}",
            "Run the same release on both sides.",
        )
    if greeting.timeline != control.timeline:
        return Refusal(MISMATCH, f"greeting for timeline {greeting.timeline} on {control.timeline}")
    if not control.has_left and (refusal := absence(control)):
        return refusal
    if theirs.system_id != ours.system_id:
        return Refusal(
            MISMATCH,
            f"primary has system identifier {theirs.system_id}, "
            f"the timeline belongs to {ours.system_id}",
            "Attach the primary that this timeline was created for, or create another timeline.",
        )
    if theirs.pg_major != ours.pg_major or theirs.wal_seg_size != ours.wal_seg_size:
        return Refusal(
            MISMATCH,
            f"primary is Postgres {theirs.pg_major} with {theirs.wal_seg_size} byte segments, "
            f"the timeline was created for {ours.pg_major} with {ours.wal_seg_size}",
            "A major upgrade needs a new timeline.",
        )
    return None


def membership_refusal(own: Membership, membership: Membership) -> Refusal | None:
    """The stamp never decreases, and equal stamps mean equal memberships (ConfigSafety)."""
    if membership.stamp < own.stamp:
        return Refusal(WRONG_STATE, f"membership {membership.stamp} is older than {own.stamp} here")
    if membership.stamp == own.stamp and membership != own:
        return Refusal(
            DATA_CORRUPTED,
            f"membership {own.stamp} has the sets {own.groups} here, but was sent with other sets "
            f"or addresses: {membership.groups}",
        )
    return None


def author_refusal(node_id: NodeId, membership: Membership) -> Refusal | None:
    """A leader sends only memberships that it wrote itself (condition M2)."""
    if membership.stamp.author == node_id:
        return None
    return Refusal(
        PROTOCOL_VIOLATION,
        f"proposer {node_id} sends a membership that {membership.stamp.author} wrote",
    )


def elected_refusal(
    control: ControlState, elected: Elected, flush_lsn: int, commit_lsn: int
) -> Refusal | None:
    """Why this safekeeper cannot follow an Elected whose NodeId is not below its promise."""
    refusal = author_refusal(elected.node_id, elected.membership)
    refusal = refusal or membership_refusal(control.membership, elected.membership)
    if refusal:
        return refusal
    problem = (
        _misfit(control, elected)
        or _other_history(control, elected, flush_lsn)
        or _parting(control, elected, flush_lsn, commit_lsn)
    )
    return Refusal(DATA_CORRUPTED, problem) if problem else None


def _misfit(control: ControlState, elected: Elected) -> str:
    if elected.timeline_start_lsn != control.timeline_start_lsn:
        return (
            f"timeline starts at {format_lsn(control.timeline_start_lsn)}, proposer says "
            f"{format_lsn(elected.timeline_start_lsn)}"
        )
    ballots = [entry.node_id for entry in elected.term_history.entries]
    if ballots[-1:] != [elected.node_id]:
        return (
            f"term history {elected.term_history} of proposer {elected.node_id} does not end "
            "with it"
        )
    return ""


def _other_history(control: ControlState, elected: Elected, flush_lsn: int) -> str:
    """A ballot has one history, also above the end of the log here. A safekeeper that has joined,
    and has no WAL yet, knows only the part below its start."""
    ours = (control.term_history, control.tli_history)
    theirs = (elected.term_history, elected.tli_history)
    if ours[0].entries[-1].node_id != elected.node_id or ours == theirs:
        return ""
    if flush_lsn == control.local_start_lsn and ours == (
        theirs[0].clipped(flush_lsn), clipped_tli_history(theirs[1], flush_lsn)
    ):  # fmt: skip
        return ""
    return (
        f"proposer {elected.node_id} was elected with term history {ours[0]} and Postgres "
        f"timelines {_brief(ours[1])}, but now sends {theirs[0]} and {_brief(theirs[1])}"
    )


def _parting(control: ControlState, elected: Elected, flush_lsn: int, commit_lsn: int) -> str:
    """Elected may cut unflushed WAL: nothing is lost, because our vote for that proposer named the
    flushed position."""
    start_lsn, history = elected.start_streaming_at, control.term_history.clipped(flush_lsn)
    try:
        common_lsn = highest_common_point(elected.term_history, history, flush_lsn)
    except HistoryError as error:
        return str(error)
    if start_lsn != common_lsn:
        return (
            f"proposer {elected.node_id} wants to stream from {format_lsn(start_lsn)}, "
            f"but the logs diverge at {format_lsn(common_lsn)}"
        )
    if start_lsn < commit_lsn:
        return (
            f"proposer {elected.node_id} would truncate to {format_lsn(start_lsn)}, "
            f"below the committed {format_lsn(commit_lsn)}"
        )
    difference = first_difference(
        control.tli_history, elected.tli_history, control.timeline_start_lsn, start_lsn
    )
    if difference is None:
        return ""
    return (
        f"Postgres timelines differ at {format_lsn(difference)}: "
        f"{control.tli_history.tli_at(difference)} here, "
        f"{elected.tli_history.tli_at(difference)} at the proposer"
    )


def _brief(history: TimelineHistory) -> str:
    """`1 to 0/3000110, 2`: the Postgres timelines, each with the end of its WAL."""
    left = [f"{entry.tli} to {format_lsn(entry.switch_lsn)}" for entry in history.entries]
    return ", ".join([*left, str(history.tli)])
