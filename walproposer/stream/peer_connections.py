"""The data connections to the safekeepers, by peer: opens, reopens and closes them.

A peer is a place in the core's list of addresses, which grows while members change. Law: nothing of
a forgotten place reaches the core, so a thread's late result for it is discarded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from quorum_wal.consensus.codec import decode_safekeeper_message
from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.event_loop import EventLoop
from quorum_wal.walproposer.stream.events import Event, PeerConnected, PeerLost, PeerMessage
from quorum_wal.walproposer.stream.peer import open_push

log = structlog.get_logger()

#: After a closing of ours for the same reason as the last one, twice as long as before: the reason
#: may last until somebody acts, and each attempt writes lines to our log and the safekeeper's.
RECONNECT_SECONDS, RECONNECT_SECONDS_MAX = 0.5, 10.0

#: SQLSTATEs of a member that has no such timeline, or cannot trust what it has of it.
LOST_DATA = ("42704", "XX001")


@dataclass(frozen=True, slots=True)
class _Closing:
    """Of a connection by us: why, at which time, and how long after it the next one begins."""

    reason: str
    at_seconds: float
    wait_seconds: float


class PeerConnections:
    """`step` hands an event to the core. `changed` is called when a connection needs handling in
    `update`. Everything but `addresses` and `errors` is for the loop's thread."""

    def __init__(
        self,
        loop: EventLoop,
        timeline: TimelineId,
        proposer_http: str,
        step: Callable[[Event], None],
        changed: Callable[[], None],
    ) -> None:
        #: The addresses of the open places.
        self.addresses: dict[int, SafekeeperAddress] = {}
        #: Why a safekeeper could not be connected to; "" once it was.
        self.errors: dict[int, str] = {}
        self.open: dict[int, CopyConnection] = {}
        self._loop = loop
        self._timeline = timeline
        self._proposer_http = proposer_http
        self._step = step
        self._changed = changed
        #: By place: the number of its last attempt to connect. Results of older attempts are
        #: discarded.
        self._attempts: dict[int, int] = {}
        #: By place: the last.
        self._closings: dict[int, _Closing] = {}

    def add(self, peer: int, address: SafekeeperAddress) -> None:
        """Connect to it, and reconnect whenever the connection is lost."""
        if peer in self.addresses:
            return
        self.addresses[peer], self.errors[peer] = address, ""
        self._connect(peer)

    def forget(self, peer: int) -> None:
        """Close it, without an event to the core."""
        self._attempts[peer] = self._attempts.get(peer, 0) + 1
        self.addresses.pop(peer, None)
        self.errors.pop(peer, None)
        copy = self.open.pop(peer, None)
        if copy is not None:
            self._close(copy)

    def drop(self, peer: int, reason: str, *, at_once: bool = False) -> None:
        """Close the connection, and connect again, `at_once` or later."""
        if peer not in self.open:
            return
        self._lost(peer, reason)
        if at_once:
            self._connect(peer)
        else:
            self._connect_later(peer, self._wait_seconds(peer, reason))

    def update(self) -> None:
        """Drop ended connections, and set the events to wait for on the others."""
        for peer, copy in list(self.open.items()):
            if copy.end is not None:
                self._lost(peer, str(copy.end))
                self._connect_later(peer)
                self._step(PeerLost(peer, str(copy.end)))
            else:
                self._loop.set_interest(copy, reads=True, writes=copy.wants_write)

    def ready(self, peer: int, copy: CopyConnection) -> None:
        """Handle the input of a connection."""
        for payload in copy.receive():
            try:
                message = decode_safekeeper_message(payload)
            except MessageError as error:
                copy.end_with(WalProposerError(str(error)))
                return
            if self.open.get(peer) is copy:  # the previous message may have closed it
                self._step(PeerMessage(peer, message))

    def all(self) -> Iterator[CopyConnection]:
        yield from self.open.values()

    def _lost(self, peer: int, reason: str) -> None:
        self._close(self.open.pop(peer))
        self.errors[peer] = reason
        log.warning("safekeeper lost", safekeeper=str(self.addresses[peer]), reason=reason)

    def _wait_seconds(self, peer: int, reason: str) -> float:
        now, last = time.monotonic(), self._closings.get(peer)
        # A connection that lasted was not closed again and again.
        if last is not None and now - last.at_seconds - last.wait_seconds > RECONNECT_SECONDS_MAX:
            last = None
        wait_seconds = RECONNECT_SECONDS
        if last is not None and last.reason == reason:
            wait_seconds = min(2 * last.wait_seconds, RECONNECT_SECONDS_MAX)
        self._closings[peer] = _Closing(reason, now, wait_seconds)
        return wait_seconds

    def _close(self, copy: CopyConnection) -> None:
        self._loop.unwatch(copy)
        copy.close()

    def _connect(self, peer: int) -> None:
        address, timeline, http = self.addresses[peer], self._timeline, self._proposer_http
        attempt = self._attempts[peer] = self._attempts.get(peer, 0) + 1
        self._loop.in_thread(
            lambda: open_push(address, timeline, http),
            lambda result: self._connected(peer, attempt, result),
        )

    def _connect_later(self, peer: int, seconds: float = RECONNECT_SECONDS) -> None:
        attempt = self._attempts[peer]

        def again() -> None:
            if self._attempts[peer] == attempt:
                self._connect(peer)

        self._loop.call_later(seconds, again)

    def _connected(
        self, peer: int, attempt: int, result: CopyConnection | WalProposerError
    ) -> None:
        if self._attempts[peer] != attempt:
            if not isinstance(result, WalProposerError):
                result.close()
            return
        address = str(self.addresses[peer])
        if isinstance(result, WalProposerError):
            if self.errors[peer] != str(result):
                log.warning("safekeeper not connected", safekeeper=address, reason=str(result))
            self.errors[peer] = str(result)
            self._connect_later(peer)
            if result.sqlstate in LOST_DATA:
                self._step(PeerLost(peer, str(result), lost_data=True))
            return
        self.errors[peer] = ""
        copy = self.open[peer] = result
        copy.on_change(self._changed)
        self._loop.watch(copy, lambda: self.ready(peer, copy), copy.flush)
        log.info("safekeeper connected", safekeeper=address)
        self._step(PeerConnected(peer))
        if self.open.get(peer) is copy:
            self.ready(peer, copy)
