"""FORCE_MEMBERSHIP: other members by an operator's word, when a quorum is lost for good. Pure.

Nobody has voted on it. Laws: the stamp only grows, and so does the promise, which becomes the new
author's: whoever led before is fenced. The membership is marked, and so is every later one, as
commits that were acknowledged may be missing in the log of the only member, which all others will
get; those that hear of it keep theirs, and are in no set.
"""

from __future__ import annotations

from dataclasses import replace

from consensus.membership import Membership
from pgwal.lsn import format_lsn
from safekeeper.control_state import ControlState
from safekeeper.errors import TimelineError
from safekeeper.refusals import DATA_CORRUPTED, WRONG_STATE, absence, membership_refusal

INVALID_PARAMETER = "22023"


def forced(
    safekeeper_id: int, instance: bytes, control: ControlState, membership: Membership
) -> ControlState:
    """What the safekeeper has after it; `control` itself when it came before. Raises
    TimelineError."""
    refusal = absence(control) or membership_refusal(control.membership, membership)
    if refusal:
        raise TimelineError(refusal.message, hint=refusal.hint, sqlstate=refusal.sqlstate)
    if membership == control.membership:
        return control
    is_keeper = safekeeper_id in membership.members
    _check_members(membership)
    if is_keeper:
        _check_keeper(instance, control, membership.member(safekeeper_id).instance)
    return replace(
        control,
        membership=membership,
        promised=max(control.promised, membership.stamp.author),
        forced=is_keeper,
    )


def _check_members(membership: Membership) -> None:
    """One alone: a second one may lack WAL that the first has dropped."""
    if membership.is_joint or len(membership.members) != 1:
        raise TimelineError(
            f"members {membership.groups} are forced, expected a single one",
            hint="sk member add makes it more.",
            sqlstate=INVALID_PARAMETER,
        )


def _check_keeper(instance: bytes, control: ControlState, named: bytes) -> None:
    if instance != named:
        raise TimelineError(
            f"safekeeper with instance {named.hex()} is to be the only member, this one is "
            f"{instance.hex()}",
            sqlstate=INVALID_PARAMETER,
        )
    if control.lost_lsn:
        raise TimelineError(
            f"the log here was flushed up to {format_lsn(control.lost_lsn)} and is damaged",
            hint="One whose log is whole must go on; sk restore makes a server of the archive.",
            sqlstate=DATA_CORRUPTED,
        )


def streaming_refusal(address: str) -> TimelineError:
    """While a proposer lives, commits may still be acknowledged."""
    return TimelineError(
        f"a proposer ({address}) streams to this safekeeper",
        hint="Stop it first, and whatever would start it again.",
        sqlstate=WRONG_STATE,
    )
