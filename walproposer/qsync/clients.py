"""Which transactions have a connected client, and since when the others have none. Pure."""

from __future__ import annotations

from quorum_wal.walproposer.qsync.janitor import Client

# Time to remember a disconnected client whose transaction was never seen.
REMEMBER_MS = 60_000


class Clients:
    """A connection (`waiter`) is the client of one transaction at a time. A transaction may have
    several."""

    def __init__(self) -> None:
        self._gid_of: dict[int, str] = {}
        self._waiters: dict[str, set[int]] = {}
        self._gone_ms: dict[str, int] = {}

    def connected(self, waiter: int, gid: str, now_ms: int) -> None:
        """From now on it is a client of `gid`."""
        if self._gid_of.get(waiter) == gid:
            return
        self.disconnected(waiter, now_ms)
        self._gid_of[waiter] = gid
        self._waiters.setdefault(gid, set()).add(waiter)
        self._gone_ms.pop(gid, None)

    def disconnected(self, waiter: int, now_ms: int) -> None:
        gid = self._gid_of.pop(waiter, None)
        if gid is None:
            return
        others = self._waiters[gid]
        others.discard(waiter)
        if not others:
            del self._waiters[gid]
            self._gone_ms[gid] = now_ms

    def of(self, gid: str) -> Client:
        return Client(gid in self._waiters, self._gone_ms.get(gid))

    def forget_old(self, now_ms: int) -> None:
        """In the order in which the last clients disconnected, so it stops at the first recent
        one."""
        while self._gone_ms:
            gid = next(iter(self._gone_ms))
            if now_ms - self._gone_ms[gid] < REMEMBER_MS:
                return
            del self._gone_ms[gid]
