"""The operations for pageservers and administrators. `client.py` implements them over HTTP,
`operations.py` on a database in the same process.

Laws. Each call is one transaction, and returns after it is durable. Numbers never decrease and are
never assigned twice, unless the database was restored from an old copy; `advance` repairs that. All
calls are thread-safe. Every call may be repeated: a number whose answer was lost is skipped.

Every operation raises GenerationServiceUnavailable, GenerationDatabaseError and, for invalid
values, RequestInvalid. A `tenant` and a `timeline` are 32 hex digits in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from quorum_wal.generations.messages import (
    AttachmentMode,
    GenerationStatus,
    NodeAttachments,
    NodeRegistration,
    TenantGeneration,
    TenantState,
    TimelineIntent,
    Validation,
)
from quorum_wal.generations.suffix import Suffix


class GenerationService(Protocol):
    # ---- for pageservers

    def register_node(self, node_id: int, incarnation: str) -> NodeRegistration:
        """Registers a new process. Returns its number and all attachments of its node, including
        stale ones. `incarnation` identifies the process in the status. Raises GenerationRefused if
        no number is left."""

    def attached(self, node_id: int, node_generation: int) -> NodeAttachments:
        """The present attachments of the node. Changes nothing."""

    def validate(
        self, node_id: int, node_generation: int, tenants: Iterable[TenantGeneration]
    ) -> Validation:
        """Returns which of them are the newest according to the database. Changes nothing.

        A valid attachment was valid at some time after the call began. So objects dropped by an
        index that was written before the call may be deleted after it.
        """

    def create_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        """Repeated, it returns the same answer. Raises GenerationRefused if the tenant does not
        exist, or if the timeline was deleted: ids are never reused."""

    def delete_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        """Records the intent; call it before any object is deleted. Repeated, it returns the same
        answer. An unknown timeline is also marked as deleted, because its creation may be late."""

    # ---- for administrators

    def attach(self, tenant: str, node_id: int) -> TenantState:
        """Attaches to that node with a new generation. Creates an unknown tenant. Raises
        GenerationRefused if the tenant is attached to another node."""

    def move(
        self, tenant: str, node_id: int, mode: AttachmentMode = AttachmentMode.SINGLE
    ) -> TenantState:
        """Moves to that node with a new generation; the previous attachment becomes stale. With
        MULTI nothing is deleted until all stale attachments are detached. Raises GenerationRefused
        if the tenant is already attached there, or to no node."""

    def detach(self, tenant: str, node_id: int) -> TenantState:
        """Detaches from that node. Detaching the last stale attachment changes MULTI to SINGLE.
        Does nothing if it is not attached there. Raises GenerationRefused if the tenant does not
        exist."""

    def fence_tenant(self, tenant: str, node_id: int | None = None) -> TenantState:
        """Assigns a new generation in any case. All attachments become stale, and the tenant is
        attached to `node_id`, or to no node. Creates an unknown tenant."""

    def advance(self, tenant: str, suffix: Suffix, *, is_own: bool = False) -> TenantState:
        """`suffix` was found in the object store. All numbers assigned from now on, for the tenant
        and for the node of the suffix, are greater. The current attachment gets a new generation.
        Does nothing if all numbers are greater already.

        `is_own`: the caller claimed the suffix in an emergency start and continues to use it. The
        tenant is attached to its node with exactly this generation, unless an equal or greater one
        was assigned in the meantime.
        """

    def status(self) -> GenerationStatus:
        """Changes nothing."""

    def close(self) -> None:
        """Closes connections."""
