"""The core that checks whether a process and its attachments are the newest. Pure.

    begin (all note the stored indices) -> ask the service -> list greater claims -> announce

Laws. An attachment is VALID only under these conditions: after the beginning, the service confirmed
its tenant and its node, and the store had no greater claim and no tombstone. An attachment missing
from the answer is not valid. Each answer is used once, and only for the round that asked.

The claims protect by themselves: each later attachment claims before it chooses its index. This
also holds if the service was restored from an old copy, or if a process started without it. The
service separates two processes that do not see the same store at the same time, and it ends a
process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict

#: Tenant (16 bytes) and attachment generation, as the service knows them.
TenantGeneration: TypeAlias = tuple[bytes, int]

# ---- events


@dataclass(frozen=True, slots=True)
class ValidationDue:
    """All attachments that need validation."""

    attachments: frozenset[AttachmentId]


@dataclass(frozen=True, slots=True)
class ServiceAnswered:
    ticket: int
    is_node_valid: bool
    tenants: Mapping[TenantGeneration, bool]


@dataclass(frozen=True, slots=True)
class ClaimsListed:
    """The claims above the suffix of `attachment`, and whether a tombstone exists."""

    ticket: int
    attachment: AttachmentId
    above: tuple[Suffix, ...]
    is_deleted: bool


# ---- actions


@dataclass(frozen=True, slots=True)
class Begin:
    """Notify the attachments and the deletion queue before any question is sent."""

    ticket: int


@dataclass(frozen=True, slots=True)
class AskService:
    ticket: int
    tenants: frozenset[TenantGeneration]


@dataclass(frozen=True, slots=True)
class ListClaims:
    """In one request: the keys of `pages/` after the claim of `attachment`, up to the
    tombstone's."""

    ticket: int
    attachment: AttachmentId


@dataclass(frozen=True, slots=True)
class Announce:
    """To the deletion queue, then to the attachments. An attachment not in `verdicts` has no
    verdict."""

    ticket: int
    verdicts: Mapping[AttachmentId, Verdict]


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Another process has the node id."""


Action: TypeAlias = Begin | AskService | ListClaims | Announce | EndProcess


@dataclass(frozen=True, slots=True)
class ValidationFailed:
    """The request failed, and its answer is unknown."""

    action: AskService | ListClaims


Event: TypeAlias = ValidationDue | ServiceAnswered | ClaimsListed | ValidationFailed


@dataclass(slots=True)
class _Round:
    ticket: int
    attachments: frozenset[AttachmentId]
    is_answered: bool = False
    verdicts: dict[AttachmentId, Verdict] = field(default_factory=dict)


class Validation:
    """One object per process."""

    def __init__(self) -> None:
        self._round: _Round | None = None
        self._ticket = 0

    def step(self, event: Event) -> list[Action]:
        match event:
            case ValidationDue(attachments):
                return self._begin(attachments)
            case ServiceAnswered():
                return self._answered(event)
            case ClaimsListed():
                return self._listed(event)
            case ValidationFailed(action):
                return self._failed(action)

    def _begin(self, attachments: frozenset[AttachmentId]) -> list[Action]:
        """Runs one round at a time."""
        if self._round is not None or not attachments:
            return []
        self._ticket += 1
        self._round = _Round(self._ticket, attachments)
        tenants = frozenset(map(tenant_generation, attachments))
        return [Begin(self._ticket), AskService(self._ticket, tenants)]

    def _answered(self, answer: ServiceAnswered) -> list[Action]:
        current = self._round
        if current is None or current.ticket != answer.ticket or current.is_answered:
            return []
        current.is_answered = True
        if not answer.is_node_valid:
            return [*self._announce(current, Verdict.OUTDATED), EndProcess()]
        asked = sorted(current.attachments)
        valid = [each for each in asked if answer.tenants.get(tenant_generation(each)) is True]
        current.verdicts = dict.fromkeys({*asked} - {*valid}, Verdict.OUTDATED)
        if not valid:
            return self._announce(current, Verdict.OUTDATED)
        return [ListClaims(current.ticket, each) for each in valid]

    def _listed(self, listed: ClaimsListed) -> list[Action]:
        current = self._round
        if current is None or current.ticket != listed.ticket:
            return []
        current.verdicts[listed.attachment] = verdict_of(listed)
        if len(current.verdicts) < len(current.attachments):
            return []
        return self._announce(current, Verdict.OUTDATED)

    def _announce(self, current: _Round, default: Verdict) -> list[Action]:
        self._round = None
        verdicts = {each: current.verdicts.get(each, default) for each in current.attachments}
        return [Announce(current.ticket, verdicts)]

    def _failed(self, action: AskService | ListClaims) -> list[Action]:
        """The next round asks the service again; a store request is repeated at once."""
        if self._round is None or self._round.ticket != action.ticket:
            return []
        if isinstance(action, ListClaims):
            return [action]
        self._round = None
        return []


def tenant_generation(attachment: AttachmentId) -> TenantGeneration:
    return attachment.timeline.tenant_id, attachment.suffix.attachment_generation


def verdict_of(listed: ClaimsListed) -> Verdict:
    if listed.is_deleted:
        return Verdict.DELETED
    is_rivalled = any(suffix > listed.attachment.suffix for suffix in listed.above)
    return Verdict.RIVALLED if is_rivalled else Verdict.VALID
