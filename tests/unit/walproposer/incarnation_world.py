"""An incarnation on real sockets, a turn at a time: its primary and its safekeepers are the test's.

    Primary  ==socketpair==>  Incarnation  ==socketpair==>  Follower (one for each safekeeper)

Its clock stands still until it is moved. What is sent to it may be cut anywhere: it comes by
`deliver`, and the turns after that take it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any, TypeVar

import pytest
from new_timeline import SERVER, TIMELINE
from proposer_steps import MEMBERS, PRIMARY, UUID, history, member
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.codec import decode_proposer_message, encode
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.messages import (
    NO_FEEDBACK,
    Append,
    AppendResponse,
    Configure,
    Elected,
    Follow,
    ProposerGreeting,
    SafekeeperGreeting,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwire.framing import COPY_BUFFER_BYTES, COPY_DATA, MESSAGE_BYTES_MAX, FrameBuffer
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream import incarnation, peer_connections
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.event_loop import EventLoop
from quorum_wal.walproposer.stream.events import Action, Event, SteadyEnded
from quorum_wal.walproposer.stream.incarnation import Incarnation
from quorum_wal.walproposer.stream.plain_copy import PlainCopy
from quorum_wal.walproposer.stream.upstream import Upstream
from tests.steady_batch import framed

ADDRESSES = tuple((f"sk{number}", 5454) for number in (1, 2, 3, 4))
#: Ours; some frames do not fit.
SEND_BUFFER_BYTES = 4096
#: The steady loop asks the real clock: for it the next tick is far away.
BEGIN_SECONDS = 10_000.0 + time.monotonic()

T = TypeVar("T")


class Wire:
    """The test's end of a connection; the incarnation's is as libpq leaves it."""

    def __init__(self) -> None:
        self.theirs, ours = socket.socketpair()
        self._ours = ours
        self.theirs.setblocking(False)
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        pgconn = SimpleNamespace(nonblocking=0, socket=ours.fileno(), ssl_in_use=False)
        connection: Any = SimpleNamespace(pgconn=pgconn, close=ours.close)
        self.copy = PlainCopy(connection, FrameBuffer(COPY_BUFFER_BYTES))
        #: Messages that were sent, and have not arrived yet.
        self.waiting = bytearray()
        #: All that was heard, and what of it is no whole frame yet.
        self.heard = bytearray()
        self._frames = FrameBuffer()

    def deliver(self, count: int) -> None:
        try:
            sent = self.theirs.send(self.waiting[:count])
        except (BlockingIOError, BrokenPipeError):
            return  # it is full, or the other end is closed
        del self.waiting[:sent]

    def hear(self) -> list[bytes]:
        """The payloads that have arrived."""
        try:
            while data := self.theirs.recv(1 << 16):
                self.heard += data
                self._frames.feed(data)
        except (BlockingIOError, ConnectionResetError):
            pass  # that was all
        return [bytes(payload) for payload in self._frames.take_copy_data(MESSAGE_BYTES_MAX)]

    def close(self) -> None:
        self.theirs.close()
        self.copy.close()


class Follower:
    """A safekeeper that has all WAL that it was sent. It answers when the test orders it."""

    def __init__(self, peer: int) -> None:
        self.peer = peer
        self.wire = Wire()
        #: A connection to it may be opened: our end of `wire`.
        self.is_reachable = True
        self.is_stalled = False
        self.promised, self.membership = NodeId.ZERO, MEMBERS
        self.terms = history()
        #: flush_lsn and durable_lsn, as they have been.
        self.positions = [(START_LSN, START_LSN)]
        self.commit_lsn = 0
        self.streams = False

    def connect(self) -> None:
        self.wire.close()
        self.wire, self.is_stalled, self.streams = Wire(), False, False
        self.is_reachable = True

    def accept(self) -> PlainCopy:
        if not self.is_reachable:
            raise Unreachable("it does not come back yet")
        self.is_reachable = False
        return self.wire.copy

    def hear(self) -> None:
        if not self.is_stalled:
            for payload in self.wire.hear():
                self._take(decode_proposer_message(payload))

    def say(self, message: Any) -> None:
        self.wire.waiting += framed([encode(message)])

    def _take(self, message: Any) -> None:
        number = self.peer + 1
        match message:
            case ProposerGreeting():
                who = member(number).instance
                greeting = SafekeeperGreeting(number, who, False, self.promised, self.membership)
                self.say(greeting)
            case VoteRequest(_, node_id):
                self.promised = node_id
                self.say(self._vote())
            case Elected():
                self.streams = True
                self.membership, self.terms = message.membership, message.term_history
                self.positions = [(message.start_streaming_at,) * 2]
            case Configure(_, membership):
                self.membership = membership
            case Append():
                self._append(message)
            case Follow():
                pass  # it learns of WAL that another one has sent by then

    def _append(self, append: Append) -> None:
        flush_lsn, _ = self.positions[-1]
        self.positions.append((max(flush_lsn, append.record_end_lsn), append.end_lsn))
        self.commit_lsn = max(self.commit_lsn, min(append.commit_lsn, append.end_lsn))

    def _vote(self) -> VoteResponse:
        flush_lsn, _ = self.positions[-1]
        return VoteResponse(
            granted=True,
            promised=self.promised,
            flush_lsn=flush_lsn,
            commit_lsn=START_LSN,
            truncate_lsn=START_LSN,
            timeline_start_lsn=START_LSN,
            membership=self.membership,
            term_history=self.terms.clipped(flush_lsn),
            tli_history=TimelineHistory(1),
        )

    def response(self, behind: int) -> AppendResponse:
        """An answer with its current positions; `flushed` is the position of some messages ago."""
        flush_lsn, _ = self.positions[max(0, len(self.positions) - 1 - behind)]
        generation = self.membership.generation
        durable_lsn = self.positions[-1][1]
        return AppendResponse(
            generation, self.promised, flush_lsn, durable_lsn, self.commit_lsn, 0, NO_FEEDBACK
        )


class FakeUpstream(Upstream):
    """For a primary that the test plays."""

    def __init__(self, copy: PlainCopy) -> None:
        self._waiting = copy
        self.copy = None
        self.primary = PRIMARY
        self.next_lsn = self.reported_lsn = 0
        self.primary_end_lsn = PRIMARY.flush_lsn

    def start(self, begin_lsn: int, changed: Callable[[], None]) -> int:
        self._waiting.on_change(changed)
        self.next_lsn, self.copy = begin_lsn, self._waiting
        return begin_lsn


class LoopOfOneThread(EventLoop):
    """Does the work of other threads in turns of its own. A timer runs when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._later: list[Callable[[], None]] = []

    def in_thread(
        self, work: Callable[[], T], done: Callable[[T | WalProposerError], None]
    ) -> None:
        def run() -> None:
            try:
                result: T | WalProposerError = work()
            except WalProposerError as error:
                result = error
            done(result)

        self.call(run)

    def call_later(self, seconds: float, callback: Callable[[], None]) -> None:
        self._later.append(callback)

    def run_later(self) -> None:
        """The time of all timers has come."""
        callbacks, self._later = self._later, []
        for callback in callbacks:
            callback()


class IncarnationWorld:
    """`how`: the module of the steady path's loop and that of its leader; None: without one."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        how: tuple[ModuleType, ModuleType] | None,
        rule: ChainRule = NO_CHAINS,
    ) -> None:
        self.now = BEGIN_SECONDS
        monkeypatch.setattr(incarnation, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(incarnation, "GATHER_SECONDS", 0.0)
        monkeypatch.setattr(incarnation, "is_shutting_down", lambda _: False)
        monkeypatch.setattr(incarnation, "join", lambda *_: None)
        monkeypatch.setattr(incarnation, "leave", lambda *_: None)
        monkeypatch.setattr(peer_connections, "open_push", self._open_push)
        if how is not None:
            monkeypatch.setattr(incarnation, "SteadyLoop", how[0].SteadyLoop)
            monkeypatch.setattr(incarnation, "SteadyLeader", how[1].SteadyLeader)
        else:
            never = SimpleNamespace(of=lambda _: None)
            monkeypatch.setattr(incarnation, "SteadyLeader", never)
        self.loop = LoopOfOneThread()
        self.log = WalLog()
        self.primary = Wire()
        self.followers = [Follower(peer) for peer in range(4)]
        #: How many Appends and answers went by the steady path.
        self.steady_appends = self.steady_answers = 0
        self._start(rule)

    def _start(self, rule: ChainRule) -> None:
        addresses = tuple(SafekeeperAddress(*each) for each in ADDRESSES)
        primary: Any = SimpleNamespace(slot="a slot", application_name="us")
        config = ProposerConfig(primary, addresses, chains=rule)
        candidacy = Candidacy(TIMELINE, SERVER, ADDRESSES, UUID, None)
        upstream = FakeUpstream(self.primary.copy)
        self.incarnation = inc = Incarnation(config, candidacy, upstream, self.loop)
        step = inc.core.step

        def counted(event: Event) -> list[Action]:
            if isinstance(event, SteadyEnded):
                self.steady_appends += len(event.steady.wal)
                self.steady_answers += sum(event.steady.has_answered)
            return step(event)

        inc.core.step = counted  # type: ignore[method-assign]
        inc.start(self.now)
        while not (inc.core.streams and all(f.streams for f in self.followers[:3])):
            self.settle()
            for follower in self.followers:
                follower.wire.deliver(1 << 16)

    def _open_push(self, address: SafekeeperAddress, _: TimelineId, __: str) -> PlainCopy:
        return self.followers[ADDRESSES.index((address.host, address.port))].accept()

    def turn(self) -> None:
        """Handle all input: the wake-up comes after it, and ends the wait. The kernel reports files
        in the order of its list, so the last wake-up must be removed from it."""
        self.loop.epoll.poll(0)
        self.loop.wake()
        self.incarnation.turn(self.now)
        for follower in self.followers:
            follower.hear()

    def settle(self) -> None:
        """The general path handles the other input in the turn after the one that found it."""
        for _ in range(3):
            self.turn()
        while any(f.wire.copy.wants_write for f in self.followers if not f.is_stalled):
            if not any(self._is_open(f) and f.wire.copy.wants_write for f in self.followers):
                break
            self.turn()

    def _is_open(self, follower: Follower) -> bool:
        return (
            self.incarnation.peers.open.get(follower.peer) is follower.wire.copy
            and not follower.is_stalled
        )

    def come_back(self, peer: int) -> None:
        """On a new connection, if the last one was closed."""
        inc, follower = self.incarnation, self.followers[peer]
        if peer in inc.peers.open or peer not in inc.peers.addresses:
            return
        follower.connect()
        self.loop.run_later()
        for _ in range(3):
            self.settle()
            follower.wire.deliver(1 << 16)

    def close(self) -> None:
        self.loop.close()
        for wire in (self.primary, *(f.wire for f in self.followers)):
            wire.close()


def reported(data: bytes) -> list[bytes]:
    """The reports to the primary, without the time."""
    frames = FrameBuffer()
    frames.feed(data)
    found = [bytes(payload) for payload in frames.take_copy_data(MESSAGE_BYTES_MAX)]
    assert frames.peek_type() in (None, COPY_DATA)
    return [p[:25] + p[33:] if p[:1] == b"r" else p[:1] + p[9:] for p in found]


def moved_site(membership: Any, site: str) -> tuple[Any, ...]:
    """The same members; one of them reports another site."""
    first, *others = membership.roster
    return (replace(first, site=site), *others)
