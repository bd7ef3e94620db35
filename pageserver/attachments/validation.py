"""The core that asks whether a process, and its attachments, are the newest. Pure.

    begin (all note what is in the store) -> ask the service -> list claims above -> announce

Laws. VALID is said of an attachment only when, after the beginning, the service has said so of its
tenant and its node, and the store had no claim above its suffix and no tombstone. Whom an answer
leaves out is not valid. No answer is used twice, none of a beginning before.

The claims are a fence of their own: also when the service was put back to an old copy, or others
have started without it, whoever comes later has claimed before it chose its index. The service is
what keeps two that do not see one store at one time apart, and what ends a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from generations.suffix import Suffix
from pageserver.objects.attachment_id import AttachmentId, Verdict

#: Tenant (16 bytes) and attachment generation, as the service knows them.
TenantGeneration: TypeAlias = tuple[bytes, int]

# ---- events


@dataclass(frozen=True, slots=True)
class ValidationDue:
    """All attachments that have something to be validated."""

    attachments: frozenset[AttachmentId]


@dataclass(frozen=True, slots=True)
class ServiceAnswered:
    ticket: int
    is_node_valid: bool
    tenants: Mapping[TenantGeneration, bool]


@dataclass(frozen=True, slots=True)
class ClaimsListed:
    """Those above the suffix of `attachment`, and whether there is a tombstone."""

    ticket: int
    attachment: AttachmentId
    above: tuple[Suffix, ...]
    is_deleted: bool


# ---- actions


@dataclass(frozen=True, slots=True)
class Begin:
    """Tell the attachments and the deletion queue, before anything is asked."""

    ticket: int


@dataclass(frozen=True, slots=True)
class AskService:
    ticket: int
    tenants: frozenset[TenantGeneration]


@dataclass(frozen=True, slots=True)
class ListClaims:
    """In one request: keys of `pages/` behind the own claim, up to the tombstone's."""

    ticket: int
    attachment: AttachmentId


@dataclass(frozen=True, slots=True)
class Announce:
    """To the deletion queue, then to the attachments. Of who is not in it nothing is said."""

    ticket: int
    verdicts: Mapping[AttachmentId, Verdict]


@dataclass(frozen=True, slots=True)
class EndProcess:
    """Another process has the node id."""


Action: TypeAlias = Begin | AskService | ListClaims | Announce | EndProcess


@dataclass(frozen=True, slots=True)
class ValidationFailed:
    """Nothing is known of what was asked for."""

    action: AskService | ListClaims


Event: TypeAlias = ValidationDue | ServiceAnswered | ClaimsListed | ValidationFailed


@dataclass(slots=True)
class _Round:
    ticket: int
    attachments: frozenset[AttachmentId]
    is_answered: bool = False
    verdicts: dict[AttachmentId, Verdict] = field(default_factory=dict)


class Validation:
    """One object a process."""

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
        """One at a time."""
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
        """The service is asked by the next round; the store at once."""
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
