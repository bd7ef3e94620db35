"""FORCE_MEMBERSHIP: an operator sets other members after a quorum is lost for good. Pure.

There is no vote. Laws: the stamp and the promise only grow. The promise becomes the new author's,
so the previous leader is fenced. This membership and every later one are marked: acknowledged
commits may be missing in the log of the only member, and all later members get this log.
Other safekeepers that receive this membership keep their log, and are in no set.
"""

from __future__ import annotations

from dataclasses import replace

from quorum_wal.consensus.membership import Membership
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.safekeeper.refusals import DATA_CORRUPTED, WRONG_STATE, absence, membership_refusal

INVALID_PARAMETER = "22023"


def forced(
    safekeeper_id: int, instance: bytes, control: ControlState, membership: Membership
) -> ControlState:
    """The state after FORCE_MEMBERSHIP; `control` itself if the request was served before. Raises
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
    """One member only: a second one may lack WAL that the first has removed."""
    if membership.is_joint or len(membership.members) != 1:
        raise TimelineError(
            f"members {membership.groups} are forced, expected a single one",
            hint="Force one member, then add others with sk member add.",
            sqlstate=INVALID_PARAMETER,
        )


def _check_keeper(instance: bytes, control: ControlState, named: bytes) -> None:
    if instance != named:
        raise TimelineError(
            f"safekeeper with instance {named.hex()} must be the only member, this one is "
            f"{instance.hex()}",
            sqlstate=INVALID_PARAMETER,
        )
    if control.lost_lsn:
        raise TimelineError(
            f"the log here was flushed up to {format_lsn(control.lost_lsn)} and is damaged",
            hint="Force a member whose log is whole, or restore the archive with sk restore.",
            sqlstate=DATA_CORRUPTED,
        )


def streaming_refusal(address: str) -> TimelineError:
    """While a proposer runs, commits may still be acknowledged."""
    return TimelineError(
        f"a proposer ({address}) streams to this safekeeper",
        hint="Stop the proposer first, and everything that would start it again.",
        sqlstate=WRONG_STATE,
    )
