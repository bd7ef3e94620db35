"""`QueueShell`: executes the actions of the deletion queue's core, as `attachment_shell` does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar, assert_never

import structlog

from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attachments import deletion_events as events
from quorum_wal.pageserver.attachments.deletion_queue import DeletionQueue
from quorum_wal.pageserver.attachments.event_loop import EventLoop
from quorum_wal.pageserver.objects.deletion_list import (
    DeletionList,
    decode_header,
    decode_list,
    encode_header,
    encode_list,
)
from quorum_wal.pageserver.objects.page_keys import ListName, QueueKeys, QueueName

T = TypeVar("T")

RETRY_SECONDS = 2.0

log = structlog.get_logger()


class QueueShell:
    """The shell of one process. `hinted` checks a list of an earlier process. `ended` is called
    with (message, hint) if this process is not the newest of its node."""

    def __init__(
        self,
        loop: EventLoop,
        core: DeletionQueue,
        store: ObjectStore,
        hinted: Callable[[events.Hint], None],
        ended: Callable[[str, str], None],
    ) -> None:
        self.core = core
        self.deleted_keys = 0
        self._loop = loop
        self._store = store
        self._keys = QueueKeys(core.suffix.node_id)
        self._hinted = hinted
        self._ended = ended

    def step(self, event: events.QueueEvent) -> None:
        for action in self.core.step(event):
            self._execute(action)

    def _execute(self, action: events.QueueAction) -> None:
        match action:
            case events.CreateHeader():
                self._ask(action, partial(self._create_header, action), self.step)
            case events.ListQueue():
                self._ask(action, self._list, self.step)
            case events.ReadHeader():
                self._ask(action, partial(self._read_header, action), self.step)
            case events.ReadList(name):
                self._ask(action, partial(self._read_list, name), self.step)
            case events.PersistList():
                self._ask(action, partial(self._persist, action), self.step)
            case events.DeleteKeys(name, keys):
                self._ask(action, lambda: self._store.delete_many(keys),
                          lambda _: self._deleted(name, keys))  # fmt: skip
            case events.RemoveFromQueue(names):
                own = [self._keys.key(name) for name in names]
                self._ask(action, lambda: self._store.delete_many(own),
                          lambda _: self.step(events.Removed(names)))  # fmt: skip
            case events.Hint():
                self._hinted(action)
            case events.EndQueue(message, hint):
                self._ended(message, hint)
            case _:
                assert_never(action)

    def _deleted(self, name: ListName, keys: tuple[str, ...]) -> None:
        self.deleted_keys += len(keys)
        self.step(events.KeysDeleted(name, keys))

    def _create_header(self, action: events.CreateHeader) -> events.HeaderCreated:
        key = self._keys.key(action.name)
        incarnation = action.header.incarnation
        if not self._store.create(key, encode_header(action.header)):
            incarnation = decode_header(self._store.get(key), key).incarnation
        return events.HeaderCreated(action.name, incarnation)

    def _list(self) -> events.QueueListed:
        found: dict[QueueName, int] = {}
        for info in self._store.list(self._keys.prefix):
            name = self._keys.parse(info.key)
            if name is not None:
                found[name] = int(info.modified_at.timestamp() * 1000)
        return events.QueueListed(found)

    def _read_header(self, action: events.ReadHeader) -> events.HeaderRead:
        key = self._keys.key(action.name)
        found = None
        try:
            found = decode_header(self._store.get(key), key)
        except ObjectNotFound:
            log.info("a header of the deletion queue does not exist any more", key=key)
        except ObjectDamaged as error:
            log.error("a header of the deletion queue is damaged", reason=str(error))
        return events.HeaderRead(action.name, found)

    def _persist(self, action: events.PersistList) -> events.ListPersisted:
        self._store.create(self._keys.key(action.name), encode_list(action.deletions))
        return events.ListPersisted(action.name)

    def _read_list(self, name: ListName) -> events.ListRead | events.ListDamaged:
        key = self._keys.key(name)
        try:
            found: DeletionList | None = decode_list(self._store.get(key), key)
        except ObjectNotFound:
            found = None
        except ObjectDamaged as error:
            log.error("a list of the deletion queue is damaged; it is kept", reason=str(error))
            return events.ListDamaged(name)
        return events.ListRead(name, found)

    def _ask(
        self,
        action: events.StoreAction,
        attempt: Callable[[], T],
        answered: Callable[[T], None],
    ) -> None:
        def failed(error: Exception) -> None:
            log.warning("a request to the object store failed; will retry", reason=str(error))
            again = partial(self.step, events.QueueFailed(action))
            self._loop.call_later(RETRY_SECONDS, again)

        self._loop.work(attempt, answered, failed)
