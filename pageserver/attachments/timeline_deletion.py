"""Permanently deletes a timeline's pages: the shell of `timeline_removal.py`.

    service: owner?           claims above?      intent       ...          owner now?
    store:                                         tombstone, list, delete, list ... nothing

Laws. The intent is recorded first, and the tombstone is created before anything is deleted. Both
are kept permanently. Any process may repeat each step: after a crash, run it again. A generation
service that knows less than the store (an old copy) is refused, because it may report a tenant as
not attached while a process has it. The owner of the tenant is read before and after. If the tenant
has moved, a late request of the earlier process may create objects after the last listing, and
run() raises an error.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.messages import TenantAttachment
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.suffix import NODE_GENERATION_MAX, NODE_ID_MAX, Suffix
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attachments.timeline_removal import (
    Action,
    AllListed,
    BatchDeleted,
    CreateTombstone,
    DeleteBatch,
    Event,
    ListAll,
    RemovalBegun,
    TimelineRemoval,
    TimelineRemoved,
    TombstoneCreated,
)
from quorum_wal.pageserver.cuts.tombstone import create_tombstone
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.objects.page_keys import CLAIMS, ClaimName, PageKeys


@dataclass(frozen=True, slots=True)
class RemovedPages:
    """`suffix`: of the process that had the tenant; all zeros if the tenant was not attached."""

    suffix: Suffix
    objects: int


def remove_pages(store: ObjectStore, timeline: TimelineId, suffix: Suffix) -> RemovedPages:
    """Removes all objects but the tombstone. The service must have recorded the intent. Raises
    ObjectStoreError: then some objects may be left, and it may be called again."""
    core, prefix, objects = TimelineRemoval(suffix), PageKeys(timeline).prefix, 0
    actions: deque[Action] = deque(core.step(RemovalBegun()))
    while actions:
        event: Event
        match actions.popleft():
            case CreateTombstone():
                create_tombstone(store, timeline)
                event = TombstoneCreated()
            case ListAll():
                keys = [info.key for info in store.list(prefix)]
                event = AllListed(tuple(key.removeprefix(prefix) for key in keys))
            case DeleteBatch(names):
                store.delete_many([prefix + name for name in names])
                objects += len(names)
                event = BatchDeleted(names)
            case TimelineRemoved(done_by):
                return RemovedPages(done_by, objects)
        actions += core.step(event)
    raise AssertionError("a removal ends with TimelineRemoved")


@dataclass(frozen=True, slots=True)
class Holder:
    """The owner of a tenant, according to the generation service. All suffixes that the service
    assigned are at or below `suffix`, which is that of a process if `attachment` is not None."""

    attachment: TenantAttachment | None
    suffix: Suffix

    def __str__(self) -> str:
        if self.attachment is None:
            return "attached to no node"
        mode = self.attachment.mode.value
        return f"attached to node {self.attachment.node_id} ({mode}), generation {self.suffix}"


class TimelineDeletion:
    """Deletes one timeline, on behalf of any client of the generation service. Every method raises
    ObjectStoreError, GenerationError."""

    def __init__(
        self, store: ObjectStore, service: GenerationService, timeline: TimelineId
    ) -> None:
        self._store = store
        self._service = service
        self._timeline = timeline
        self._tenant = timeline.tenant_id.hex()

    def holder(self) -> Holder:
        """Raises PageserverError if the store has a claim above all suffixes that the service
        knows: the service is an old copy, or a pageserver started without it."""
        holder = self._ask_holder()
        keys = PageKeys(self._timeline)
        names = (keys.parse(info.key) for info in self._store.list(keys.prefix + CLAIMS))
        claimed = max((name.suffix for name in names if isinstance(name, ClaimName)), default=None)
        if claimed is not None and claimed > holder.suffix:
            raise PageserverError(
                f"found a claim {claimed} in the store, but the generation service assigned none "
                f"above {holder.suffix}: tenant {self._tenant} is {holder}",
                hint="The generation service was restored from an old copy, or a pageserver "
                f"started without it. Run sk generations advance {self._tenant} {claimed}.",
            )
        return holder

    def _ask_holder(self) -> Holder:
        status = self._service.status()
        tenant = next((each for each in status.tenants if each.tenant == self._tenant), None)
        if tenant is None:
            return Holder(None, Suffix(0))
        current = tenant.current
        if current is None:
            generation = tenant.attachment_generation
            return Holder(None, Suffix.pack(generation, NODE_ID_MAX, NODE_GENERATION_MAX))
        processes = {node.node_id: node.node_generation for node in status.nodes}
        process = processes.get(current.node_id, 0)
        return Holder(current, Suffix.pack(current.attachment_generation, current.node_id, process))

    def run(self) -> RemovedPages:
        """May be repeated. Raises PageserverError if the tenant moved in the meantime."""
        name = self._tenant, self._timeline.timeline_id.hex()
        before = self._service.delete_timeline(*name).suffix
        removed = remove_pages(
            self._store, self._timeline, Suffix.parse(before) if before else Suffix(0)
        )
        after = self._service.delete_timeline(*name).suffix
        if after != before:
            raise PageserverError(
                f"tenant {self._tenant} moved from {before or 'nowhere'} to {after or 'nowhere'} "
                "while its timeline was deleted",
                hint="Run the command again: late requests may have created objects since.",
            )
        return removed
