"""A start without the generation service: which suffix, which timelines; and its end.

    the service is silent -> all names in the store -> suffix above -> claims     mode: emergency
    the service is back   -> advance(tenant, suffix) -> who is valid? -> single, or stale

Laws. It is refused while the service answers. One suffix is chosen for the process, above all that
the store has seen; each timeline is claimed with it by create, so of two that choose the same one
only one has a timeline. It takes what its node had last, and what is named: a claim on any other
timeline would end the attachment of a pageserver that is well. Nothing is deleted, and no WAL is
given up, until the service was told, and a validation has said that it is the newest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Protocol

import structlog

from consensus.ids import TimelineId
from generations.errors import (
    GenerationDatabaseError,
    GenerationRefused,
    GenerationServiceUnavailable,
)
from generations.messages import AttachmentMode
from generations.protocol import GenerationService
from generations.suffix import Suffix
from objectstore.archive import find_timelines
from objectstore.store import ObjectStore
from pageserver.attachments.emergency import emergency_suffix
from pageserver.attachments.turns import Turns
from pageserver.errors import PageserverError
from pageserver.objects.page_keys import ClaimName, PageKeys, PageName, QueueKeys, TombstoneName

TELL_SECONDS = 2.0
MEANING = (
    "started without the generation service, with generation {suffix} above all in the store: cuts "
    "go on, nothing is deleted, no WAL is given up. It is told when it answers; or tell it: "
    "sk generations advance TENANT {suffix} --own"
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EmergencyAttachments:
    suffix: Suffix
    timelines: tuple[TimelineId, ...]

    @property
    def meaning(self) -> str:
        """For status page and log."""
        return MEANING.format(suffix=self.suffix)

    @property
    def tenants(self) -> tuple[str, ...]:
        return tuple(sorted({timeline.tenant_id.hex() for timeline in self.timelines}))


@dataclass(frozen=True, slots=True)
class ToldService:
    """What it has said. `modes`: of each tenant; MULTI, which deletes nothing, while another one
    has it: the next validation says so. `refused`: timelines that were deleted meanwhile."""

    modes: Mapping[str, AttachmentMode]
    refused: Mapping[TimelineId, GenerationRefused]


class EmergencyListener(Protocol):
    """A process."""

    def emergency_begun(self, found: EmergencyAttachments) -> None:
        """The service has not answered: attach these."""

    def emergency_told(self, told: ToldService) -> None:
        """The service knows the suffix."""

    def end(self, message: str, hint: str) -> None:
        """It is none, or there is nothing to do."""


class EmergencyStart:
    """Of one process; begin() is called within a turn."""

    def __init__(
        self,
        turns: Turns,
        store: ObjectStore,
        service: GenerationService,
        node_id: int,
        listener: EmergencyListener,
    ) -> None:
        self._turns = turns
        self._store = store
        self._service = service
        self._node_id = node_id
        self._listener = listener

    def begin(self, tenants: frozenset[str]) -> None:
        """`tenants` are taken whoever had them."""

        def chosen(found: EmergencyAttachments) -> None:
            log.critical("emergency", reason=found.meaning, timelines=[*map(str, found.timelines)])
            self._listener.emergency_begun(found)
            self._turns.call_later(TELL_SECONDS, partial(self._tell, found))

        def failed(error: Exception) -> None:
            self._listener.end(" ".join(str(error).split()), getattr(error, "hint", ""))

        self._turns.work(partial(self.choose, tenants), chosen, failed)

    def _tell(self, found: EmergencyAttachments) -> None:
        def told(answer: ToldService) -> None:
            log.warning("the generation service was told", suffix=str(found.suffix))
            self._listener.emergency_told(answer)

        def failed(error: Exception) -> None:
            log.info("the generation service is told later", reason=str(error))
            self._turns.call_later(TELL_SECONDS, partial(self._tell, found))

        self._turns.work(partial(self.tell, found), told, failed)

    # ---- not within turns

    def choose(self, tenants: frozenset[str]) -> EmergencyAttachments:
        """Raises PageserverError when the service answers, or nothing is to be taken;
        GenerationError when it answers that it refuses, or the numbers are used up."""
        self._check_silent()
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
                f"no timeline of archive {self._store.url} was attached to node "
                f"{self._node_id} last",
                hint="Name what it shall take: --emergency-tenant.",
            )
        return EmergencyAttachments(suffix, taken)

    def _check_silent(self) -> None:
        try:
            self._service.status()
        except (GenerationServiceUnavailable, GenerationDatabaseError):
            return
        raise PageserverError(
            "the generation service answers: this is no emergency",
            hint="Start without --emergency; move, or fence, a tenant that another node has.",
        )

    def _names(self, timeline: TimelineId) -> Iterator[PageName]:
        keys = PageKeys(timeline)
        for info in self._store.list(keys.prefix):
            name = keys.parse(info.key)
            if name is not None:
                yield name

    def _is_taken(self, names: list[PageName], is_named: bool) -> bool:
        """What was deleted, never."""
        if any(isinstance(name, TombstoneName) for name in names):
            return False
        claims = [name.suffix for name in names if isinstance(name, ClaimName)]
        return is_named or (bool(claims) and max(claims).node_id == self._node_id)

    def tell(self, found: EmergencyAttachments) -> ToldService:
        """Raises GenerationError. Again: nothing changes."""
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
        return ToldService(modes, refused)
