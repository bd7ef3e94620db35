"""`FaultyStore`: a store with faults, on top of one without.

    fails       before the request has an effect, or after it: the caller cannot distinguish
    repeats     a request, as a client or a proxy may
    delays      an answer

Equal seeds give equal faults. A reader must detect what it truncates in `get`.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import Data, ObjectInfo, ObjectStore

T = TypeVar("T")

DELAY_SECONDS_MAX = 0.01


class FaultyStore:
    """An ObjectStore. Each rate is the share of the requests with that fault."""

    def __init__(
        self,
        store: ObjectStore,
        seed: int,
        *,
        fails: float = 0.2,
        repeats: float = 0.1,
        delays: float = 0.1,
        truncates: float = 0.0,
    ) -> None:
        self.store = store
        self.url = store.url
        self.faults = 0
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._rates = (fails / 2, fails / 2, repeats, delays)
        self._truncates = truncates

    def _do(self, request: Callable[[], T]) -> T:
        before, after, repeated, delayed = (self._happens(rate) for rate in self._rates)
        if delayed:
            time.sleep(self._random.random() * DELAY_SECONDS_MAX)
        if before:
            raise ObjectStoreError("the request was lost", is_transient=True)
        answer = request()
        if repeated:
            request()
        if after:
            raise ObjectStoreError("the answer was lost", is_transient=True)
        return answer

    def _happens(self, rate: float) -> bool:
        with self._lock:
            happens = self._random.random() < rate
            self.faults += happens
            return happens

    def put(self, key: str, data: Data) -> None:
        self._do(lambda: self.store.put(key, data))

    def create(self, key: str, data: Data) -> bool:
        return self._do(lambda: self.store.create(key, data))

    def get(self, key: str) -> bytes:
        data = self._do(lambda: self.store.get(key))
        return data[: self._random.randrange(len(data))] if self._cuts() and data else data

    def get_pieces(self, key: str) -> Iterator[bytes]:
        pieces = self._do(lambda: [*self.store.get_pieces(key)])
        yield from pieces[: self._random.randrange(len(pieces))] if self._cuts() else pieces

    def get_tail(self, key: str, length: int) -> bytes:
        return self._do(lambda: self.store.get_tail(key, length))

    def get_range(self, key: str, begin: int, length: int) -> bytes:
        return self._do(lambda: self.store.get_range(key, begin, length))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        infos = self._do(lambda: [*self.store.list(prefix, after)])
        cut = (
            self._random.randrange(len(infos)) if infos and self._happens(self._rates[0]) else None
        )
        yield from infos[:cut]
        if cut is not None:
            raise ObjectStoreError("the list was cut", is_transient=True)

    def list_folders(self, prefix: str) -> Sequence[str]:
        return self._do(lambda: self.store.list_folders(prefix))

    def delete(self, key: str) -> None:
        self._do(lambda: self.store.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._do(lambda: self.store.delete_many(keys))

    def _cuts(self) -> bool:
        return self._happens(self._truncates)


def insist(attempt: Callable[[], T], attempts_max: int = 100) -> T:
    """Repeat the call until it succeeds, as the callers of a store do; returns its result."""
    for _ in range(attempts_max):
        try:
            return attempt()
        except ObjectStoreError as error:
            if not error.is_transient:
                raise
    raise AssertionError(f"{attempts_max} attempts failed")
