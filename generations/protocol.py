"""What a pageserver and an administrator may ask, be it of a service or of a database in their own
process: `client.py` and `operations.py` are the two.

Laws. Each call is one transaction, and returns after it is durable. Numbers never go down and are
never given twice, unless the database was put back to an old copy: `advance` mends that. Any thread
may call. All of it may be asked again: a number that an answer lost is skipped.

Everything raises GenerationServiceUnavailable, GenerationDatabaseError and, for values that make no
sense, RequestInvalid. A `tenant` and a `timeline` are 32 hex digits in lower case.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from generations.messages import (
    AttachmentMode,
    GenerationStatus,
    NodeAttachments,
    NodeRegistration,
    TenantGeneration,
    TenantState,
    TimelineIntent,
    Validation,
)
from generations.suffix import Suffix


class GenerationService(Protocol):
    # ---- for pageservers

    def register_node(self, node_id: int, incarnation: str) -> NodeRegistration:
        """A process starts: its number, and what is attached to its node, also what is stale.
        `incarnation` is for people: who it was. Raises GenerationRefused when no number is left."""

    def attached(self, node_id: int, node_generation: int) -> NodeAttachments:
        """What is attached to the node now. Changes nothing."""

    def validate(
        self, node_id: int, node_generation: int, tenants: Iterable[TenantGeneration]
    ) -> Validation:
        """Which of them are the newest, as the database has it now. Changes nothing.

        What is valid was so at a moment after the call began; so what was decided, and written to
        the index, before the call may be deleted after it.
        """

    def create_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        """Again: the same answer. Raises GenerationRefused when the tenant is not known, or the
        timeline was deleted: its id never returns."""

    def delete_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        """The intent, to be asked for before anything is deleted. Again: the same answer. One that
        is not known is deleted, too: its creation may be on the way."""

    # ---- for administrators

    def attach(self, tenant: str, node_id: int) -> TenantState:
        """On that node, with a new generation; a tenant that is not known is made. Raises
        GenerationRefused when it is attached to another one."""

    def move(
        self, tenant: str, node_id: int, mode: AttachmentMode = AttachmentMode.SINGLE
    ) -> TenantState:
        """To that node, with a new generation; the attachment before is stale. With MULTI nothing
        is deleted until those that are stale are detached. Raises GenerationRefused when it is
        there, or is attached nowhere."""

    def detach(self, tenant: str, node_id: int) -> TenantState:
        """From that node. The last stale one that goes makes MULTI SINGLE. Raises GenerationRefused
        when the tenant is not known; one that is not there is no error."""

    def fence_tenant(self, tenant: str, node_id: int | None = None) -> TenantState:
        """A new generation whatever was before: all attachments are stale, and the tenant is on
        `node_id`, or nowhere. A tenant that is not known is made."""

    def advance(self, tenant: str, suffix: Suffix, *, is_own: bool = False) -> TenantState:
        """`suffix` was found in the object store. What is given out from now on, for the tenant and
        for its node, is above; the current attachment has a new generation. Nothing happens when
        all is above already.

        `is_own`: the caller claimed it in an emergency, and goes on with it: the tenant is on its
        node with just this generation, unless as much was given out meanwhile.
        """

    def status(self) -> GenerationStatus:
        """Changes nothing."""

    def close(self) -> None:
        """Ends connections."""
