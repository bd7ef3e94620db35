"""A lock on an object store, which need not compare and swap: numbered objects, created once.

    000000000041   {"holder": "a"}     taken
    000000000042   {"holder": "a"}     renewed
    000000000043   {"holder": ""}      given back
    000000000044   {"holder": "b"}     taken; the number fences: it never goes back

Whoever creates the next number has the lock. Who waits takes it when the last number has been the
same for a whole lease by his own clock, or was given back. Numbers far below the last are deleted;
one that somebody very late creates there is not the last, and he sees that by looking again.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import msgspec

from objectstore.errors import ObjectDamaged, ObjectNotFound
from objectstore.sealed import seal, unseal
from objectstore.store import ObjectStore

DIGITS = 12
KEPT = 2
FOLDER = "lock/"


class ObjectLock:
    """As `lease.Lock`."""

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
        """Of a number that is gone, or cannot be read, somebody: it must grow old first."""
        if not number:
            return ""
        key = _key(number)
        try:
            content = msgspec.json.decode(unseal(self._store.get(key), key))
        except (ObjectNotFound, ObjectDamaged, msgspec.DecodeError):
            return "somebody"
        return str(content.get("holder", "")) if isinstance(content, dict) else "somebody"


def _key(number: int) -> str:
    return f"{FOLDER}{number:0{DIGITS}}"
