"""The waits for the quorum, by position and by deadline. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.qsync.limbo_events import NEVER_LSN, Verdict

ENDED_MAX = 1000  # number of obsolete heap items before a heap is rebuilt


@dataclass(frozen=True, slots=True)
class Wait:
    """One question of one connection. `after_round`: for a BARRIER. `resolving`: for a RESOLVE
    whose record ends at `lsn`, the verdict."""

    waiter: int
    lsn: int
    deadline_ms: int
    gid: Gid | None = None
    after_round: int | None = None
    resolving: Verdict | None = None


#: The key of its order, a serial number (the older one first), and the wait.
_Item = tuple[int, int, Wait]


class Waits:
    """Two heaps, one for each order. The item of an ended wait stays in a heap until it is
    reached."""

    def __init__(self) -> None:
        self._waits: dict[int, Wait] = {}
        self._by_lsn: list[_Item] = []
        self._by_deadline: list[_Item] = []
        #: Waits whose position the quorum has, but which wait for another condition.
        self._held: dict[int, Wait] = {}
        self._count = 0

    def __len__(self) -> int:
        return len(self._waits)

    def add(self, wait: Wait) -> None:
        """Replaces the previous question of the same connection."""
        self.remove(wait.waiter)
        self._count += 1
        self._waits[wait.waiter] = wait
        heapq.heappush(self._by_lsn, (wait.lsn, self._count, wait))
        heapq.heappush(self._by_deadline, (wait.deadline_ms, self._count, wait))
        self._by_lsn = self._compacted(self._by_lsn)
        self._by_deadline = self._compacted(self._by_deadline)

    def _compacted(self, heap: list[_Item]) -> list[_Item]:
        if len(heap) <= 2 * len(self._waits) + ENDED_MAX:
            return heap
        kept = [item for item in heap if self.has(item[2])]
        heapq.heapify(kept)
        return kept

    def has(self, wait: Wait) -> bool:
        return self._waits.get(wait.waiter) is wait

    def remove(self, waiter: int) -> None:
        self._waits.pop(waiter, None)
        self._held.pop(waiter, None)

    def reached(self, commit_lsn: int) -> list[Wait]:
        """The waits whose position is at or below `commit_lsn`, by position. Each call returns all
        of them."""
        while self._by_lsn and self._by_lsn[0][0] <= commit_lsn:
            _, _, wait = heapq.heappop(self._by_lsn)
            if self.has(wait):
                self._held[wait.waiter] = wait
        return list(self._held.values())

    def overdue(self, now_ms: int) -> Iterator[Wait]:
        """The waits whose deadline has passed. The caller removes them."""
        while self._by_deadline and self._by_deadline[0][0] <= now_ms:
            _, _, wait = heapq.heappop(self._by_deadline)
            if self.has(wait):
                yield wait

    @property
    def is_holding(self) -> bool:
        """Whether a wait depends on another condition than its position."""
        return bool(self._held)

    def all(self) -> list[Wait]:
        return list(self._waits.values())

    @property
    def least_lsn(self) -> int:
        """The lowest position that is waited for and not reached; NEVER_LSN if there is none."""
        while self._by_lsn and not self.has(self._by_lsn[0][2]):
            heapq.heappop(self._by_lsn)
        return self._by_lsn[0][0] if self._by_lsn else NEVER_LSN
