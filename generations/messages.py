"""What the generation service is asked and what it answers: values, and their JSON.

    POST /v1/register/node    {"node_id": 3, "incarnation": "5f..."}
    -> {"node_id": 3, "node_generation": 26, "attachments": [
           {"tenant": "32 hex digits", "node_id": 3, "attachment_generation": 7, "mode": "single"}]}

Unknown fields of a request are refused: they may be meant to forbid something. Those of an answer
are passed over: a newer service may say more.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import msgspec
from msgspec import Struct

from generations.errors import GenerationServiceUnavailable, RequestInvalid
from generations.suffix import Suffix

T = TypeVar("T")


class AttachmentMode(Enum):
    """What an attachment may do."""

    SINGLE = "single"  # everything
    MULTI = "multi"  # all but delete: the one before it is still read from
    STALE = "stale"  # read and ingest; its uploads and deletes are in vain, and not done


class TimelineState(Enum):
    CREATED = "created"
    DELETED = "deleted"  # for ever


# ---- answers


class TenantAttachment(Struct, frozen=True):
    """One tenant on one node. It is the tenant's current one unless it is stale."""

    tenant: str
    node_id: int
    attachment_generation: int
    mode: AttachmentMode


class TenantState(Struct, frozen=True):
    """`attachment_generation`: the greatest that was given out. `attachments`: by node, the current
    one and those that are stale; none of them is current when it is attached nowhere."""

    tenant: str
    attachment_generation: int
    attachments: tuple[TenantAttachment, ...]

    @property
    def current(self) -> TenantAttachment | None:
        found = (a for a in self.attachments if a.mode is not AttachmentMode.STALE)
        return next(found, None)


class NodeRegistration(Struct, frozen=True):
    """A process, and all that is attached to its node."""

    node_id: int
    node_generation: int
    attachments: tuple[TenantAttachment, ...]

    def suffix(self, attachment: TenantAttachment) -> Suffix:
        """What this process writes that tenant's objects with."""
        return Suffix.pack(attachment.attachment_generation, self.node_id, self.node_generation)


class NodeAttachments(Struct, frozen=True):
    """As a registration, of a process that runs. `is_node_valid`: it is the node's newest."""

    node_id: int
    node_generation: int
    is_node_valid: bool
    attachments: tuple[TenantAttachment, ...]


class TenantGeneration(Struct, frozen=True, forbid_unknown_fields=True):
    """What a process believes to have. A part of a question."""

    tenant: str
    attachment_generation: int


class TenantValidity(Struct, frozen=True):
    """`mode`: of the attachment on that node now, whatever its generation; None without one."""

    tenant: str
    attachment_generation: int
    is_valid: bool
    mode: AttachmentMode | None


class Validation(Struct, frozen=True):
    """One for each that was asked. Of a node that is not valid no tenant is."""

    node_id: int
    node_generation: int
    is_node_valid: bool
    tenants: tuple[TenantValidity, ...]

    def is_valid(self, tenant: str, attachment_generation: int) -> bool:
        """False also for what was not asked."""
        return any(
            each.is_valid
            for each in self.tenants
            if (each.tenant, each.attachment_generation) == (tenant, attachment_generation)
        )


class TimelineIntent(Struct, frozen=True):
    """What is to become of a timeline. `suffix`: of the process that has the tenant now, "" while
    none has; an answer of another process is a late one."""

    tenant: str
    timeline: str
    state: TimelineState
    attachment_generation: int
    suffix: str


class NodeState(Struct, frozen=True):
    """`registered_at` is in UTC, ISO 8601; "" for one that was only heard of (advance)."""

    node_id: int
    node_generation: int
    incarnation: str
    registered_at: str


class Change(Struct, frozen=True):
    """A line of the log. Numbers that do not apply are None."""

    number: int
    changed_at: str
    operation: str
    tenant: str
    node_id: int | None
    generation: int | None


class GenerationStatus(Struct, frozen=True):
    """All there is; of the changes the newest, the last one first."""

    nodes: tuple[NodeState, ...]
    tenants: tuple[TenantState, ...]
    timelines: tuple[TimelineIntent, ...]
    changes: tuple[Change, ...]


class Refusal(Struct, frozen=True):
    """The body of every answer that is not 200."""

    error: str
    hint: str | None = None


# ---- requests


class RegisterNode(Struct, frozen=True, forbid_unknown_fields=True):
    node_id: int
    incarnation: str


class ListAttached(Struct, frozen=True, forbid_unknown_fields=True):
    node_id: int
    node_generation: int


class Validate(Struct, frozen=True, forbid_unknown_fields=True):
    node_id: int
    node_generation: int
    tenants: tuple[TenantGeneration, ...]


class FenceTenant(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    node_id: int | None = None


class AttachTenant(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    node_id: int


class MoveTenant(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    node_id: int
    mode: AttachmentMode = AttachmentMode.SINGLE


class DetachTenant(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    node_id: int


class Advance(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    suffix: str
    is_own: bool = False


class NameTimeline(Struct, frozen=True, forbid_unknown_fields=True):
    tenant: str
    timeline: str


Request = (
    RegisterNode | ListAttached | Validate | FenceTenant | AttachTenant | MoveTenant
    | DetachTenant | Advance | NameTimeline
)  # fmt: skip
R = TypeVar("R", bound=Request)


def decode_request(body: bytes, kind: type[R]) -> R:
    """The types, not the ranges: the operations look at those. Raises RequestInvalid."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"invalid request: {_one_line(error)}") from error


def decode_answer(body: bytes, kind: type[T]) -> T:
    """Raises GenerationServiceUnavailable: something else is there."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GenerationServiceUnavailable(
            f"expected an answer of a generation service: {_one_line(error)}",
            hint="Correct the URL of the service.",
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
