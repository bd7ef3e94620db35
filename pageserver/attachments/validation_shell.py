"""`ValidationShell`: executes the actions of the validation core, as `attachment_shell` does."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol, assert_never

import structlog

from quorum_wal.generations.messages import TenantGeneration
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attachments import validation as events
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.attachments.validation import Validation
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.objects.attachment_id import AttachmentId, Verdict

RETRY_SECONDS = 2.0

log = structlog.get_logger()


class ValidationListener(Protocol):
    """Implemented by the process. `node_generation` is its number."""

    node_generation: int

    def validation_begun(self, ticket: int) -> None:
        """A validation begins; no question has been sent yet."""

    def validation_announced(
        self, ticket: int, verdicts: Mapping[AttachmentId, Verdict]
    ) -> None: ...

    def replaced(self) -> None:
        """Another process has the node id."""

    def ask_service(
        self, ask: Callable[[], Any], answered: Callable[[Any], None], failed: Callable[[], None]
    ) -> None:
        """As `EventLoop.work`; also records that the service is unavailable."""


class ValidationShell:
    """The validation of one process. Call its methods on the event loop."""

    def __init__(
        self,
        loop: EventLoop,
        store: ObjectStore,
        service: GenerationService,
        node_id: int,
        listener: ValidationListener,
    ) -> None:
        #: By time.monotonic(); 0 before the first validation.
        self.validated_at = 0.0
        self._core = Validation()
        self._loop = loop
        self._store = store
        self._service = service
        self._node_id = node_id
        self._listener = listener

    def step(self, event: events.Event) -> None:
        for action in self._core.step(event):
            self._execute(action)

    def _execute(self, action: events.Action) -> None:
        match action:
            case events.Begin(ticket):
                self._listener.validation_begun(ticket)
            case events.AskService():
                self._ask(action)
            case events.ListClaims():
                self._list_claims(action)
            case events.Announce(ticket, verdicts):
                self.validated_at = time.monotonic()
                self._listener.validation_announced(ticket, verdicts)
            case events.EndProcess():
                self._listener.replaced()
            case _:
                assert_never(action)

    def _ask(self, action: events.AskService) -> None:
        asked = [TenantGeneration(tenant.hex(), number) for tenant, number in action.tenants]
        node_generation = self._listener.node_generation

        def ask() -> events.ServiceAnswered:
            answer = self._service.validate(self._node_id, node_generation, asked)
            tenants: Mapping[events.TenantGeneration, bool] = {
                (bytes.fromhex(each.tenant), each.attachment_generation): each.is_valid
                for each in answer.tenants
            }
            return events.ServiceAnswered(action.ticket, answer.is_node_valid, tenants)

        failed = partial(self.step, events.ValidationFailed(action))
        self._listener.ask_service(ask, self.step, failed)

    def _list_claims(self, action: events.ListClaims) -> None:
        objects = PageObjects(self._store, action.attachment.timeline)

        def ask() -> events.ClaimsListed:
            above = objects.claims_above(action.attachment.suffix)
            return events.ClaimsListed(
                action.ticket, action.attachment, above, objects.is_deleted()
            )

        def failed(error: Exception) -> None:
            log.warning("a request to the object store failed; will retry", reason=str(error))
            again = partial(self.step, events.ValidationFailed(action))
            self._loop.call_later(RETRY_SECONDS, again)

        self._loop.work(ask, self.step, failed)
