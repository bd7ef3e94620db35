"""Deletes a timeline: on each safekeeper that answers, with a result for every one.

Each safekeeper keeps a tombstone, so that the name is never used again. An unreachable one still
has the timeline, and must be asked again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.errors import Refusal, WalProposerError
from quorum_wal.walproposer.timelines.survey import Member

UNDEFINED_OBJECT = "42704"


class DeletionOutcome(Enum):
    DELETED = "deleted"
    ABSENT = "had none"
    FAILED = "not deleted"


@dataclass(frozen=True, slots=True)
class Deletion:
    """The result on one safekeeper; `reason` if it failed."""

    address: str
    outcome: DeletionOutcome
    reason: str = ""


def check_deletable(members: Sequence[Member], timeline: TimelineId) -> None:
    """Raises Refusal while a proposer streams to it: commits wait for this timeline."""
    for member in members:
        status = member.timelines.get(timeline, {})
        if status.get("proposer") is not None:
            raise Refusal(
                f"a proposer ({status['proposer']['address']}) streams to timeline {timeline} on "
                f"safekeeper {member.client.address}",
                hint="Run sk detach on its primary and stop the proposer first.",
            )


def delete_timeline(members: Sequence[Member], timeline: TimelineId) -> list[Deletion]:
    """Delete it permanently, wherever it is possible now. Returns one Deletion per member, in their
    order."""
    return [_delete(member, timeline) for member in members]


def _delete(member: Member, timeline: TimelineId) -> Deletion:
    address = str(member.client.address)
    if member.error is not None:
        return Deletion(address, DeletionOutcome.FAILED, str(member.error))
    options = {
        "tenant_id": timeline.tenant_id.hex(),
        "timeline_id": timeline.timeline_id.hex(),
    }
    try:
        member.client.command("DELETE_TIMELINE", options)
    except WalProposerError as error:
        if error.sqlstate == UNDEFINED_OBJECT:
            return Deletion(address, DeletionOutcome.ABSENT)
        return Deletion(address, DeletionOutcome.FAILED, str(error))
    return Deletion(address, DeletionOutcome.DELETED)
