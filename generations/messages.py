"""Requests and answers of the generation service: values, and their JSON.

    POST /v1/register/node    {"node_id": 3, "incarnation": "5f..."}
    -> {"node_id": 3, "node_generation": 26, "attachments": [
           {"tenant": "32 hex digits", "node_id": 3, "attachment_generation": 7, "mode": "single"}]}

Unknown fields of a request are rejected, because they may restrict it. Unknown fields of an answer
are ignored, because a newer service may send more.
"""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

import msgspec
from msgspec import Struct

from quorum_wal.generations.errors import GenerationServiceUnavailable, RequestInvalid
from quorum_wal.generations.suffix import Suffix

T = TypeVar("T")


class AttachmentMode(Enum):
    """What an attachment may do."""

    SINGLE = "single"  # everything
    MULTI = "multi"  # everything but deletes: the previous attachment still serves reads
    STALE = "stale"  # reads and ingest only; uploads and deletes have no effect and are not done


class TimelineState(Enum):
    CREATED = "created"
    DELETED = "deleted"  # permanent


# ---- answers


class TenantAttachment(Struct, frozen=True):
    """One tenant on one node. It is the tenant's current attachment unless it is stale."""

    tenant: str
    node_id: int
    attachment_generation: int
    mode: AttachmentMode


class TenantState(Struct, frozen=True):
    """`attachment_generation`: the greatest number assigned. `attachments`: by node, the current
    one and the stale ones. If the tenant is attached to no node, none of them is current."""

    tenant: str
    attachment_generation: int
    attachments: tuple[TenantAttachment, ...]

    @property
    def current(self) -> TenantAttachment | None:
        found = (a for a in self.attachments if a.mode is not AttachmentMode.STALE)
        return next(found, None)


class NodeRegistration(Struct, frozen=True):
    """A process, and all attachments of its node."""

    node_id: int
    node_generation: int
    attachments: tuple[TenantAttachment, ...]

    def suffix(self, attachment: TenantAttachment) -> Suffix:
        """The suffix with which this process writes the tenant's objects."""
        return Suffix.pack(attachment.attachment_generation, self.node_id, self.node_generation)


class NodeAttachments(Struct, frozen=True):
    """The attachments of a running process. `is_node_valid`: it is the newest of its node."""

    node_id: int
    node_generation: int
    is_node_valid: bool
    attachments: tuple[TenantAttachment, ...]


class TenantGeneration(Struct, frozen=True, forbid_unknown_fields=True):
    """An attachment whose validity is asked for."""

    tenant: str
    attachment_generation: int


class TenantValidity(Struct, frozen=True):
    """`mode`: of the present attachment to that node in any generation, or None."""

    tenant: str
    attachment_generation: int
    is_valid: bool
    mode: AttachmentMode | None


class Validation(Struct, frozen=True):
    """One item for each tenant asked for. If the node is not valid, no tenant is."""

    node_id: int
    node_generation: int
    is_node_valid: bool
    tenants: tuple[TenantValidity, ...]

    def is_valid(self, tenant: str, attachment_generation: int) -> bool:
        """Returns False for a tenant that was not asked for."""
        return any(
            each.is_valid
            for each in self.tenants
            if (each.tenant, each.attachment_generation) == (tenant, attachment_generation)
        )


class TimelineIntent(Struct, frozen=True):
    """The intended state of a timeline. `suffix`: of the process that has the tenant now, or "". If
    another process receives this answer, it is outdated."""

    tenant: str
    timeline: str
    state: TimelineState
    attachment_generation: int
    suffix: str


class NodeState(Struct, frozen=True):
    """`registered_at`: UTC, ISO 8601, or "" for a node known only by advance."""

    node_id: int
    node_generation: int
    incarnation: str
    registered_at: str


class Change(Struct, frozen=True):
    """A line of the change log. Numbers that do not apply are None."""

    number: int
    changed_at: str
    operation: str
    tenant: str
    node_id: int | None
    generation: int | None


class GenerationStatus(Struct, frozen=True):
    """The complete state. `changes` has the most recent ones, newest first."""

    nodes: tuple[NodeState, ...]
    tenants: tuple[TenantState, ...]
    timelines: tuple[TimelineIntent, ...]
    changes: tuple[Change, ...]


class Refusal(Struct, frozen=True):
    """The body of every answer with a status other than 200."""

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


#: msgspec prepares a type when it is first used, and two threads that do this at the same time
#: crash the process. Here the import does it.
_PREPARED = tuple(
    msgspec.json.Decoder(kind)
    for kind in (
        *(RegisterNode, ListAttached, Validate, FenceTenant, AttachTenant, MoveTenant),
        *(DetachTenant, Advance, NameTimeline, TenantState, NodeRegistration, NodeAttachments),
        *(Validation, TimelineIntent, NodeState, GenerationStatus, Refusal),
    )
)


def decode_request(body: bytes, kind: type[R]) -> R:
    """Checks types only; the operations check ranges. Raises RequestInvalid."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestInvalid(f"invalid request: {_one_line(error)}") from error


def decode_answer(body: bytes, kind: type[T]) -> T:
    """Raises GenerationServiceUnavailable if the answer is not from a generation service."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise GenerationServiceUnavailable(
            f"the answer is not from a generation service: {_one_line(error)}",
            hint="Correct the URL of the service.",
        ) from error


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
