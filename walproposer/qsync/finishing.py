"""COMMIT PREPARED and ROLLBACK PREPARED in progress, and when to retry. Pure."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

from quorum_wal.walproposer.qsync.limbo_events import Finish
from quorum_wal.walproposer.qsync.limbo_table import Departure, Entry, Fate

BUSY = "55000"  # another session has it locked, briefly or while it waits in PREPARE
UNDEFINED_OBJECT = "42704"  # another session has finished it
CONNECTION_CLASSES = ("08", "57")  # the command may have succeeded

RETRY_BUSY_MS = 100
RETRY_MS = 1_000
RETRY_REFUSED_MS = 10_000


@dataclass(frozen=True, slots=True)
class Task:
    """An order, with the xid and time that identify this use of the gid."""

    xid: int
    prepared_at_us: int
    commit: bool

    @property
    def fate(self) -> Fate:
        return Fate.COMMITTED if self.commit else Fate.ROLLED_BACK

    def done(self, end_lsn: int) -> Departure:
        return Departure(self.fate, self.xid, self.prepared_at_us, end_lsn)


@dataclass(frozen=True, slots=True)
class Resolve:
    """An administrator's order, until it is executed."""

    waiter: int
    commit: bool
    deadline_ms: int


class Finishing:
    """One task per gid at a time."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}
        self._not_before_ms: dict[str, int] = {}
        self._alarmed: set[str] = set()
        self.resolves: dict[str, Resolve] = {}

    def clear(self) -> None:
        """The tasks belong to an incarnation that has ended."""
        self._tasks.clear()
        self._not_before_ms.clear()
        self._alarmed.clear()
        self.resolves.clear()

    def order(self, entry: Entry, commit: bool) -> Finish:
        gid = str(entry.gid)
        assert gid not in self._tasks, f"{gid} is being finished already"
        self._tasks[gid] = Task(entry.xid, entry.prepared_at_us, commit)
        return Finish(gid, entry.database, commit)

    def ended(self, gid: str) -> Task | None:
        return self._tasks.pop(gid, None)

    def may_order(self, gid: str, now_ms: int) -> bool:
        return gid not in self._tasks and now_ms >= self._not_before_ms.get(gid, 0)

    def is_under_way(self, gid: str) -> bool:
        return gid in self._tasks

    def is_rolling_back(self, gid: str) -> bool:
        task = self._tasks.get(gid)
        return task is not None and not task.commit

    def failed(self, gid: str, sqlstate: str, now_ms: int) -> str:
        """Set the time of the retry. Returns the text of an alarm, once per gid, if a retry will
        not help."""
        if sqlstate == BUSY:
            self._not_before_ms[gid] = now_ms + RETRY_BUSY_MS
            return ""
        if sqlstate == UNDEFINED_OBJECT or sqlstate[:2] in CONNECTION_CLASSES:
            self._not_before_ms[gid] = now_ms + RETRY_MS
            return ""
        self._not_before_ms[gid] = now_ms + RETRY_REFUSED_MS
        if gid in self._alarmed:
            return ""
        self._alarmed.add(gid)
        return f"could not finish {gid}: SQLSTATE {sqlstate}; its locks stay until it is finished"

    def left(self, gid: str) -> None:
        """It is no longer in the limbo."""
        self._not_before_ms.pop(gid, None)
        self._alarmed.discard(gid)

    def keep_only(self, gids: Container[str]) -> None:
        """All other gids are no longer in the limbo."""
        for gid in [gid for gid in self._not_before_ms if gid not in gids]:
            self.left(gid)

    def without(self, waiter: int) -> None:
        """The administrator no longer waits; a command in progress continues."""
        for gid, resolve in list(self.resolves.items()):
            if resolve.waiter == waiter:
                del self.resolves[gid]
