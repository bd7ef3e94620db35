"""Makes safekeepers forget the pageserver of a timeline: on each one that answers, with a result
for every one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.timelines.survey import Member

UNDEFINED_OBJECT = "42704"


class ForgettingOutcome(Enum):
    FORGOTTEN = "forgotten"
    ABSENT = "knew none"
    FAILED = "not forgotten"


@dataclass(frozen=True, slots=True)
class Forgetting:
    """The result on one safekeeper; `reason` and `hint` if it failed."""

    address: str
    outcome: ForgettingOutcome
    reason: str = ""
    hint: str = ""
    is_unreachable: bool = False

    def __str__(self) -> str:
        line = f"{self.address}: {self.outcome.value}"
        return f"{line}: {self.reason}" if self.reason else line


def forget_pageservers(members: Sequence[Member], timeline: TimelineId) -> list[Forgetting]:
    """Wherever it is possible now. Returns one result per member, in their order."""
    return [_forget(member, timeline) for member in members]


def _forget(member: Member, timeline: TimelineId) -> Forgetting:
    address = str(member.client.address)
    if member.error is not None:
        return _failed(address, member.error, is_unreachable=True)
    options = {
        "tenant_id": timeline.tenant_id.hex(),
        "timeline_id": timeline.timeline_id.hex(),
    }
    try:
        member.client.command("FORGET_PAGESERVER", options)
    except Unreachable as error:
        return _failed(address, error, is_unreachable=True)
    except WalProposerError as error:
        if error.sqlstate == UNDEFINED_OBJECT:
            return Forgetting(address, ForgettingOutcome.ABSENT)
        return _failed(address, error)
    return Forgetting(address, ForgettingOutcome.FORGOTTEN)


def _failed(address: str, error: WalProposerError, *, is_unreachable: bool = False) -> Forgetting:
    return Forgetting(address, ForgettingOutcome.FAILED, str(error), error.hint, is_unreachable)
