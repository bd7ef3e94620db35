"""`Emergency`: a process that starts without the service, and the end of that state. As
`emergency_start`, in a simulated world."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments import attachment_events as attaching
from quorum_wal.pageserver.attachments.attachment import Phase
from quorum_wal.pageserver.attachments.attachment_events import Mode
from quorum_wal.pageserver.attachments.emergency import emergency_suffix

from .pageserver_store import StoredObject

if TYPE_CHECKING:
    from .pageserver_process import Process
    from .pageserver_service import Tenant

BEGINNING = (Phase.CLAIMING, Phase.LISTING, Phase.LOADING)


class Emergency:
    """No service is asked; it deletes nothing until it is confirmed."""

    def __init__(self, process: Process) -> None:
        process.is_emergency = True
        self.process = process
        self._world = process.world
        self._look([*self._world.timelines, process.node_id], [])

    def _look(self, folders: list[Any], names: list[Any]) -> None:
        """One suffix above all existing ones, also in the node's deletion queue."""
        if not folders:
            self._begin(emergency_suffix(names, self.process.node_id))
            return

        def listed(found: list[StoredObject]) -> None:
            self._look(folders[1:], [*names, *(each.name for each in found)])

        again = partial(self._look, folders, names)
        later = self.process.later
        self._world.store.ask_list(folders[0], later(listed), later(again))

    def _begin(self, suffix: Suffix) -> None:
        self.process.node_generation = suffix.node_generation
        for timeline in self._world.timelines:
            self._world.count("emergency starts")
            self.process.begin(timeline, suffix, Mode.EMERGENCY)

    def tell(self) -> None:
        """The service is back: the process keeps the suffix, unless another node has the tenant by
        now."""
        process = self.process
        if not process.node_generation:
            self._tell_again()  # it still searches for its suffix
            return
        suffixes = {t.tenant_id: there.core.suffix for t, there in process.attached.items()}

        def advance() -> dict[bytes, Tenant]:
            service = self._world.service
            return {t: service.advance_own(t, suffix) for t, suffix in suffixes.items()}

        told, again = process.later(self._told), process.later(self._tell_again)
        self._world.service.ask(advance, told, again)

    def _tell_again(self) -> None:
        self._world.clock.call_later(3000, self.process.later(self.tell))

    def _told(self, tenants: dict[bytes, Tenant]) -> None:
        process = self.process
        if any(there.core.phase in BEGINNING for there in process.attached.values()):
            self._world.clock.call_later(2000, process.later(self._told), tenants)
            return
        process.is_emergency = False
        self._world.count("emergencies that went on")
        process.begin_queue()
        for there in list(process.attached.values()):
            at, suffix = tenants[there.id.timeline.tenant_id], there.core.suffix
            has_it = (at.generation, at.node_id) == (suffix.attachment_generation, process.node_id)
            process.step_attached(there, attaching.ModeSet(at.mode if has_it else Mode.MULTI))
