"""A start without the generation service: chooses a suffix and timelines, and ends the emergency.

    the service is unavailable -> all names in the store -> greater suffix -> claims     emergency
    the service answers again  -> advance(tenant, suffix) -> validation -> single, or stale

Laws. The start is refused while the service answers. The process chooses one suffix, greater than
all in the store. It claims each timeline with it by create, so of two processes with the same
suffix only one gets a timeline. It takes the timelines that its node had last and those of the
tenants that the user names. A claim on any other timeline would end the attachment of a healthy
pageserver. It deletes nothing and releases no WAL until the service has recorded the suffix and a
validation has confirmed that it is the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol

import structlog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.errors import (
    GenerationDatabaseError,
    GenerationRefused,
    GenerationServiceUnavailable,
)
from quorum_wal.generations.messages import AttachmentMode
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.archive import find_timelines
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attachments.emergency import emergency_suffix
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.objects.page_keys import (
    ClaimName,
    PageKeys,
    PageName,
    QueueKeys,
    TombstoneName,
)

ADVANCE_RETRY_SECONDS = 2.0
NOTICE = (
    "started without the generation service, with generation {suffix}, the greatest in the store: "
    "cuts continue, nothing is deleted, no WAL is released. The process registers the generation "
    "when the service is available. Or run: sk generations advance TENANT {suffix} --own"
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EmergencyAttachments:
    suffix: Suffix
    timelines: tuple[TimelineId, ...]

    @property
    def notice(self) -> str:
        """For the status page and the log."""
        return NOTICE.format(suffix=self.suffix)

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(sorted({timeline.tenant_id.hex() for timeline in self.timelines}))


@dataclass(frozen=True, slots=True)
class AdvanceAnswer:
    """The answer of the service. `modes`: by tenant. While the tenant is attached to another node,
    the mode is MULTI, which deletes nothing; the next validation then makes the attachment stale.
    `refused`: timelines that were deleted in the meantime."""

    modes: Mapping[str, AttachmentMode]
    refused: Mapping[TimelineId, GenerationRefused]


class EmergencyListener(Protocol):
    """Implemented by the process."""

    def emergency_begun(self, found: EmergencyAttachments) -> None:
        """The service is unavailable: attach these timelines."""

    def emergency_ended(self, answer: AdvanceAnswer) -> None:
        """The service has recorded the suffix."""

    def end(self, message: str, hint: str) -> None:
        """The start is refused, or there is no timeline to attach."""


class EmergencyStart:
    """The emergency start of one process. Call begin() on the event loop."""

    def __init__(
        self,
        loop: EventLoop,
        store: ObjectStore,
        service: GenerationService,
        node_id: int,
        listener: EmergencyListener,
    ) -> None:
        self._loop = loop
        self._store = store
        self._service = service
        self._node_id = node_id
        self._listener = listener

    def begin(self, tenants: frozenset[str]) -> None:
        """`tenants` are taken regardless of the node that had them last."""

        def chosen(found: EmergencyAttachments) -> None:
            log.critical(
                "emergency start",
                reason=found.notice,
                timelines=[*map(str, found.timelines)],
            )
            self._listener.emergency_begun(found)
            self._loop.call_later(ADVANCE_RETRY_SECONDS, partial(self._advance, found))

        def failed(error: Exception) -> None:
            self._listener.end(" ".join(str(error).split()), getattr(error, "hint", ""))

        self._loop.work(partial(self.choose, tenants), chosen, failed)

    def _advance(self, found: EmergencyAttachments) -> None:
        def recorded(answer: AdvanceAnswer) -> None:
            log.warning("the generation service recorded the suffix", suffix=str(found.suffix))
            self._listener.emergency_ended(answer)

        def failed(error: Exception) -> None:
            log.info("the generation service is unavailable; will retry", reason=str(error))
            self._loop.call_later(ADVANCE_RETRY_SECONDS, partial(self._advance, found))

        self._loop.work(partial(self.advance, found), recorded, failed)

    # ---- not on the event loop

    def choose(self, tenants: frozenset[str]) -> EmergencyAttachments:
        """Raises PageserverError if the service answers, or if there is no timeline to take;
        GenerationError if the service refuses, or if the numbers are used up."""
        self._check_unavailable()
        found = {timeline: [*self._names(timeline)] for timeline in find_timelines(self._store)}
        queue = QueueKeys(self._node_id)
        listed = (queue.parse(info.key) for info in self._store.list(queue.prefix))
        names = [name for name in listed if name is not None]
        suffix = emergency_suffix(chain(names, *found.values()), self._node_id)
        taken = tuple(
            sorted(t for t in found if self._is_taken(found[t], t.tenant_id.hex() in tenants))
        )
        if not taken:
            raise PageserverError(
                f"no timeline of archive {self._store.url} was last attached to node "
                f"{self._node_id}",
                hint="Name the tenants to take with --emergency-tenant.",
            )
        return EmergencyAttachments(suffix, taken)

    def _check_unavailable(self) -> None:
        try:
            self._service.status()
        except (GenerationServiceUnavailable, GenerationDatabaseError):
            return
        raise PageserverError(
            "the generation service answers, so an emergency start is refused",
            hint="Start without --emergency. Use sk generations move or fence for a tenant that is "
            "attached to another node.",
        )

    def _names(self, timeline: TimelineId) -> Iterator[PageName]:
        keys = PageKeys(timeline)
        for info in self._store.list(keys.prefix):
            name = keys.parse(info.key)
            if name is not None:
                yield name

    def _is_taken(self, names: list[PageName], is_named: bool) -> bool:
        """Deleted timelines are never taken."""
        if any(isinstance(name, TombstoneName) for name in names):
            return False
        claims = [name.suffix for name in names if isinstance(name, ClaimName)]
        return is_named or (bool(claims) and max(claims).node_id == self._node_id)

    def advance(self, found: EmergencyAttachments) -> AdvanceAnswer:
        """Raises GenerationError. May be repeated."""
        modes = {}
        for tenant in found.tenants:
            at = self._service.advance(tenant, found.suffix, is_own=True).current
            has_it = at is not None and (at.node_id, at.attachment_generation) == (
                self._node_id,
                found.suffix.attachment_generation,
            )
            modes[tenant] = at.mode if has_it and at is not None else AttachmentMode.MULTI
        refused = {}
        for timeline in found.timelines:
            tenant, name = timeline.tenant_id.hex(), timeline.timeline_id.hex()
            try:
                self._service.create_timeline(tenant, name)
            except GenerationRefused as error:
                refused[timeline] = error
        return AdvanceAnswer(modes, refused)
