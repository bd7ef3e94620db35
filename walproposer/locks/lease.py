"""The lease that prevents two proposers from competing for one primary.

    waiting -- acquired --> held -- renewed every third of its time --> held
                              '---- not renewed in time, or taken -----> lost: the proposer stops

It serves availability, not safety. Only the term vote decides which proposer may acknowledge. A
lease that two proposers hold, or none can get, loses no data. Law: a holder counts the lease time
from before the request that renewed it, by a monotonic clock. Clocks of different machines are
never compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, Thread
from typing import Protocol

import structlog

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.errors import Refusal, WalProposerError

log = structlog.get_logger()

LEASE_SECONDS = 10.0
RENEWALS_PER_LEASE = 3
POLL_SECONDS = 1.0


class Lock(Protocol):
    """A service that gives a lease to one holder at a time. Every method raises WalProposerError or
    ObjectStoreError if the service does not answer."""

    #: Its name in messages; without secrets.
    url: str
    #: The last holder seen; "" if there was none.
    holder: str

    def acquire(self, holder: str) -> bool:
        """Returns whether it is ours now. A waiting proposer calls it repeatedly."""

    def renew(self) -> bool:
        """Returns whether it is still ours."""

    def release(self) -> None:
        """Make it available to others."""


class Lease:
    """The hold of one proposer on a lock. The renewing thread calls `on_lost`."""

    def __init__(
        self,
        lock: Lock,
        holder: str,
        lease_seconds: float,
        on_lost: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = lock
        self.is_held = False
        self.error = ""
        self._holder = holder
        self._lease_seconds = lease_seconds
        self._on_lost = on_lost
        self._clock = clock
        self._ending = Event()
        self._thread: Thread | None = None

    def wait(self, stopping: StopSignal) -> bool:
        """Wait until it is held. Returns False if stopped before."""
        self.close()
        log.info("waiting for the lock", lock=self.lock.url)
        while not stopping.is_set:
            asked_at = self._clock()
            if self._try(lambda: self.lock.acquire(self._holder)):
                self.is_held = True
                log.info("lock acquired", lock=self.lock.url)
                self._ending = Event()
                self._thread = Thread(
                    target=self._keep, args=(asked_at, self._ending), name="lease", daemon=True
                )
                self._thread.start()
                return True
            stopping.wait(POLL_SECONDS)
        return False

    def close(self) -> None:
        """Release it, if it is held."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(self._lease_seconds)
            self._thread = None
        if self.is_held:
            self.is_held = False
            self._try(self._release)

    def _release(self) -> bool:
        self.lock.release()
        return True

    def _keep(self, held_since: float, ending: Event) -> None:
        interval_seconds = self._lease_seconds / RENEWALS_PER_LEASE
        while not ending.wait(interval_seconds):
            asked_at = self._clock()
            if self._try(self.lock.renew):
                held_since = asked_at
                continue
            is_taken = not self.error
            # The remaining time must be enough to stop.
            if is_taken or self._clock() - held_since >= self._lease_seconds - interval_seconds:
                self.is_held = False
                reason = "another proposer holds it" if is_taken else self.error
                log.warning("lock lost", lock=self.lock.url, reason=reason)
                self._on_lost()
                return

    def _try(self, ask: Callable[[], bool]) -> bool:
        try:
            is_ours = ask()
        except (WalProposerError, ObjectStoreError) as error:
            if str(error) != self.error:
                log.warning("lock service failed", lock=self.lock.url, reason=str(error))
            self.error = str(error)
            return False
        self.error = ""
        return is_ours


def open_lock(url: str, lease_seconds: float) -> Lock:
    """`etcd://host:port/name`, or a folder of an object store. Raises Refusal."""
    if url.startswith(("etcd://", "etcds://")):
        from quorum_wal.walproposer.locks.etcd_lock import EtcdLock

        return EtcdLock(url, lease_seconds)
    from quorum_wal.objectstore.store import open_store
    from quorum_wal.walproposer.locks.object_lock import ObjectLock

    try:
        return ObjectLock(open_store(url), lease_seconds)
    except ObjectStoreError as error:
        raise Refusal(
            f"could not use the lock: {error}",
            hint="Use etcd://host:port/name, s3://bucket/folder or /folder.",
        ) from error
