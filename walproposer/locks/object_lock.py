"""A lock on an object store without compare-and-swap: numbered objects, each created once.

    000000000041   {"holder": "a"}     acquired
    000000000042   {"holder": "a"}     renewed
    000000000043   {"holder": ""}      released
    000000000044   {"holder": "b"}     acquired; the number fences, it never decreases

The proposer that creates the next number holds the lock. A waiting proposer takes it when the last
number has not changed for a whole lease by its own clock, or was released. Numbers far below the
last are deleted. A very late proposer may create such a number again. It then lists the numbers,
and finds that its number is not the last.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.sealed import seal, unseal
from quorum_wal.objectstore.store import ObjectStore

DIGITS = 12
KEPT = 2
FOLDER = "lock/"


class ObjectLock:
    """Implements `lease.Lock`."""

    def __init__(
        self,
        store: ObjectStore,
        lease_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.url = store.url
        self.holder = ""
        self._store = store
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._ours = 0
        self._own_name = ""
        self._seen = 0
        self._seen_at = 0.0

    def acquire(self, holder: str) -> bool:
        last = max(self._numbers(), default=0)
        if last != self._seen:
            self._seen, self._seen_at = last, self._clock()
            self.holder = self._holder_of(last)
        if self.holder and self._clock() - self._seen_at < self._lease_seconds:
            return False
        self._own_name = holder
        return self._take(last + 1, holder)

    def renew(self) -> bool:
        return self._take(self._ours + 1, self._own_name)

    def release(self) -> None:
        self._take(self._ours + 1, "")
        self.holder = ""

    def _take(self, number: int, holder: str) -> bool:
        content = msgspec.json.encode({"holder": holder})
        if not self._store.create(_key(number), seal(content, None)):
            return False
        numbers = self._numbers()
        if max(numbers) != number:
            return False
        self._ours, self.holder = number, holder
        for old in sorted(numbers)[:-KEPT]:
            self._store.delete(_key(old))
        return True

    def _numbers(self) -> list[int]:
        names = [info.key.removeprefix(FOLDER) for info in self._store.list(FOLDER)]
        return [int(name) for name in names if name.isdecimal() and len(name) == DIGITS]

    def _holder_of(self, number: int) -> str:
        """The holder of a number. "unknown" if the object is deleted or unreadable: a waiting
        proposer must then wait for a whole lease."""
        if not number:
            return ""
        key = _key(number)
        try:
            content = msgspec.json.decode(unseal(self._store.get(key), key))
        except (ObjectNotFound, ObjectDamaged, msgspec.DecodeError):
            return "unknown"
        return str(content.get("holder", "")) if isinstance(content, dict) else "unknown"


def _key(number: int) -> str:
    return f"{FOLDER}{number:0{DIGITS}}"
