"""One incarnation of the proposer: the shell that runs a `Proposer` core on an epoll loop.

    primary --'w'--> Upstream --WalReceived--> core --Send--> CopyConnection --> safekeepers
    primary <--'r'-- Upstream <--ReportFlushed-- core <--PeerMessage-- CopyConnection <-- answers

The loop never blocks. A few threads do what may block (connecting, name resolution, the probe of a
stopping primary), put their results into an inbox and wake the loop.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, assert_never

import structlog

from quorum_wal.consensus.codec import encode
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import Append, ProposerMessage
from quorum_wal.storage.compiled import compiled
from quorum_wal.walproposer.chain_rule import NO_CHAINS
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import PrimaryLost, Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.commit_path import PathLog
from quorum_wal.walproposer.stream.commit_signal import CommitSignal
from quorum_wal.walproposer.stream.donor_reads import DonorReads
from quorum_wal.walproposer.stream.event_loop import EventLoop
from quorum_wal.walproposer.stream.events import (
    Action,
    CatchUpLost,
    ChangeCancelled,
    ChangeRequest,
    ChangeRequested,
    ClosePeer,
    Event,
    ForgetPeer,
    Join,
    Joined,
    Leave,
    Left,
    OpenPeer,
    OutsiderNamed,
    PeerLost,
    ReadTail,
    ReportFlushed,
    RoundAnswered,
    RoundWanted,
    Send,
    StartCatchUp,
    StartUpstream,
    SteadyEnded,
    Stop,
    StopCatchUp,
    Stopping,
    TailRead,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.joining import join, leave
from quorum_wal.walproposer.stream.peer_connections import PeerConnections
from quorum_wal.walproposer.stream.progress import PeerState
from quorum_wal.walproposer.stream.proposer import Proposer, State
from quorum_wal.walproposer.stream.quorum_watch import QuorumWatch
from quorum_wal.walproposer.stream.shutdown_probe import is_shutting_down
from quorum_wal.walproposer.stream.standby_feedback import StandbyFeedback
from quorum_wal.walproposer.stream.steady_loop import NO_INPUT, UPSTREAM
from quorum_wal.walproposer.stream.upstream import Upstream, end_of_stream
from quorum_wal.walproposer.stream.wal_window import joined

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.steady_leader import SteadyLeader
    from quorum_wal.walproposer.stream.steady_loop import SteadyLoop
else:
    SteadyLeader = compiled("quorum_wal.walproposer.stream.steady_leader").SteadyLeader
    SteadyLoop = compiled("quorum_wal.walproposer.stream.steady_loop").SteadyLoop

log = structlog.get_logger()

TICK_SECONDS = 0.1
# The primary drops a standby that is silent for wal_sender_timeout (60 s by default, often less).
REPORT_SECONDS = 1.0
PROBE_SECONDS = 1.0
DRAIN_SECONDS = 5.0
# How long WAL may wait for the answer to the previous round. A round costs every process on the
# path several wake-ups, so under load fewer and larger rounds commit more. If a round takes longer
# than this (a distant safekeeper), the next one starts before its answer.
GATHER_SECONDS = 0.001

#: A safekeeper that starts, stops or has no room: retry.
MAY_PASS = ("53", "57P")

# WAL of a bulk load does not use the steady path, which is tried again after this many rounds.
STEADY_PAUSE = 16


class Incarnation:
    """`run` returns the core's Stop, or raises PrimaryLost. Any thread may call `ask_to_stop`."""

    def __init__(
        self,
        config: ProposerConfig,
        candidacy: Candidacy,
        upstream: Upstream | None,
        loop: EventLoop | None = None,
    ) -> None:
        """`loop`: by default a new one. `run` closes it."""
        self.config = config
        self.upstream = upstream
        primary = upstream.primary if upstream is not None else None
        # An incarnation that only completes a log does not need chains.
        chains = config.chains if upstream is not None else NO_CHAINS
        self.core = Proposer(replace(candidacy, chains=chains), primary)
        self.quorum_watch = QuorumWatch(has_primary=upstream is not None)
        self.commit_signal = CommitSignal()
        self._loop = loop = loop or EventLoop()
        timeline = candidacy.timeline
        self.peers = PeerConnections(loop, timeline, config.http, self._step, self._changed)
        self._donors = DonorReads(loop, timeline, self.peers.addresses, self._step, self._changed)
        #: Why the core has stopped; None before that.
        self.end: Stop | None = None
        #: False when a connection needs handling in `_update_connections`.
        self._is_unchanged = False
        self._reads_wal = True
        self._lost: PrimaryLost | None = None
        self._is_asked_to_stop = False
        self._last_append: Append | None = None
        self._last_payload = b""
        self.now_ms = 0
        self._gather_until = self._drain_until = 0.0
        #: Rounds of the general path until the steady one is tried again.
        self._steady_pause = 0
        self._path_log = PathLog()
        self._primary_heard_at = 0.0
        self._next_tick = self._next_report = self._next_probe = 0.0
        self._standby_feedback = StandbyFeedback()

    def ask_to_stop(self) -> None:
        """The process is ending."""
        self._is_asked_to_stop = True
        self._loop.wake()

    def run(self) -> Stop | None:
        """Returns None if it was asked to stop. Raises PrimaryLost, WalProposerError."""
        now = time.monotonic()
        self.start(now)
        try:
            while self.end is None and not self._is_asked_to_stop:
                now = self.turn(now)
            return self.end
        finally:
            self._step(Stopping())
            for copy in (*self.peers.open.values(), *self._donors.open.values()):
                copy.close()
            self._loop.close()

    def start(self, now: float) -> None:
        """Connect to the safekeepers; `turn` follows. The core's clock starts before any wait."""
        self._tick(now)
        for place in list(self.core.peers):
            self.peers.add(place.peer, self.config.safekeeper(place.host, place.port))

    def turn(self, now: float) -> float:
        """Wait once, and handle the events. Returns the time; `now` is that of the last turn."""
        is_gathering = not self._reads_wal and now < self._gather_until
        wake_at = self._gather_until if is_gathering else self._next_tick
        if self._run_steady():
            wake_at = 0.0
        self._loop.run_once(max(0.0, wake_at - time.monotonic()))
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._tick(now)
        elif not self.quorum_watch.ok:
            self._watch_quorum()  # the answers of a quorum may have come since the last tick
        is_changed = not self._is_unchanged or bool(self._donors.open)
        if is_changed or self._wants_wal(now) is not self._reads_wal:
            self._update_connections(now)
        return now

    def _run_steady(self) -> bool:
        """Run the steady path, while there is one. Returns True if it left input for the general
        path in a buffer, which no poll reports, and that input was handled."""
        steady = self._steady_loop()
        if steady is None:
            return False
        leader, upstream = steady.leader, self.upstream
        assert upstream is not None
        source = steady.run(min(self._next_tick, self._loop.next_timer))
        upstream.advance(leader.next_lsn, leader.primary_end_lsn, steady.reported_lsn)
        if steady.has_heard:
            self._primary_heard_at = time.monotonic()
        self._step(SteadyEnded(leader))
        self._steady_pause = STEADY_PAUSE if source == UPSTREAM and not leader.wal else 0
        if source == UPSTREAM:
            self._upstream_ready()
        elif source >= 0:
            self.peers.ready(source, self.peers.open[source])
        return source != NO_INPUT

    def _steady_loop(self) -> SteadyLoop | None:
        """None while there is work that only the general path does."""
        upstream = self.upstream
        if not self._is_unchanged or not self._reads_wal or self._donors.open or upstream is None:
            return None
        if self._steady_pause:
            self._steady_pause -= 1
            return None
        leader = SteadyLeader.of(self.core.leader) if self.core.streams else None
        if leader is None or upstream.copy is None:
            return None
        return SteadyLoop.of(
            leader, self._loop.epoll, upstream.copy, self.peers.open, self.commit_signal
        )

    def _wants_wal(self, now: float) -> bool:
        is_gathering = now < self._gather_until and self.core.is_round_small
        return not is_gathering and self.core.wants_wal()

    def _update_connections(self, now: float) -> None:
        """After a round of events with a change: drop ended connections, and set the sockets to
        poll.

        A socket that the core does not want to read from is not polled. That is the back-pressure.
        """
        self._is_unchanged = True
        self._reads_wal = self._wants_wal(now)
        self.peers.update()
        self._donors.update(self.core.wants_catch_up)
        upstream = self.upstream
        if upstream is not None and upstream.copy is not None:
            copy = upstream.copy
            if copy.end is not None:
                self._drain(copy.end, now)
                self._loop.unwatch(copy)
            self._loop.set_interest(copy, reads=self._reads_wal, writes=copy.wants_write)
        if self._lost is not None:
            raise self._lost

    def _drain(self, end: WalProposerError, now: float) -> None:
        """A stream that ended in an orderly way, like that of an older timeline, may have brought
        WAL that the quorum does not have yet. The next incarnation would have to request it again.
        So wait for the quorum first. Raises PrimaryLost, Refusal when the wait is over."""
        error = end_of_stream(end)
        self._drain_until = self._drain_until or now + DRAIN_SECONDS
        is_orderly = isinstance(error, PrimaryLost) and error.orderly
        if not is_orderly or self.core.is_drained or now >= self._drain_until:
            raise error
        self._is_unchanged = False

    def _changed(self) -> None:
        self._is_unchanged = False

    # ---- the core

    def _step(self, event: Event) -> None:
        if type(event) is CatchUpLost:
            self._catch_up_lost(event)
        else:
            self._take(event)

    def _take(self, event: Event) -> None:
        for action in self.core.step(event):
            self._execute(action)

    def _execute(self, action: Action) -> None:
        # The two actions of every commit come first, and by type: a class pattern costs five times
        # as much.
        if type(action) is Send:
            self._send(action.peer, action.message)
            return
        if type(action) is ReportFlushed:
            self.commit_signal.advance(action.commit_lsn)
            # Before the stream has begun (a predecessor may still hold the slot) no commit waits
            # for this. The first tick after its begin reports.
            if self.upstream is not None and self.upstream.copy is not None:
                self.upstream.report(action.commit_lsn)
            return
        match action:
            case ClosePeer(peer, reason, at_once):
                self.peers.drop(peer, reason, at_once=at_once)
            case OpenPeer(peer, host, port):
                self.peers.add(peer, self.config.safekeeper(host, port))
            case ForgetPeer(peer):
                self.peers.forget(peer)
            case Join():
                self._join(action)
            case Leave():
                self._leave(action)
            case StartUpstream(begin_lsn):
                assert self.upstream is not None
                upstream = self.upstream
                self._loop.in_thread(
                    lambda: upstream.start(begin_lsn, self._changed), self._upstream_started
                )
            case ReadTail(donor, begin_lsn, end_lsn):
                self._donors.read_tail(
                    donor, self._node_id, begin_lsn, end_lsn, partial(self._tail_read, donor)
                )
            case StartCatchUp(peer, donor, begin_lsn):
                self._donors.start(peer, donor, self._node_id, begin_lsn)
            case StopCatchUp(peer):
                self._donors.stop(peer)
            case RoundAnswered(number):
                self.commit_signal.round_answered(number)
            case Stop():
                self.end = action
            case _:
                assert_never(action)

    @property
    def _node_id(self) -> NodeId:
        assert self.core.node_id is not None
        return self.core.node_id

    def _send(self, peer: int, message: ProposerMessage) -> None:
        copy = self.peers.open.get(peer)
        if copy is None:
            return  # just lost; PeerLost is on its way to the core
        if isinstance(message, Append):
            if message is not self._last_append:
                self._last_append, self._last_payload = message, encode(message)
            copy.send(self._last_payload)
        else:
            copy.send(encode(message))

    def _tick(self, now: float) -> None:
        self.now_ms = int(now * 1000)
        self._step(Tick(self.now_ms))
        self._watch_quorum()
        upstream = self.upstream
        if upstream is None or upstream.copy is None:
            return
        if self.core.quorum_is_connected:
            self._path_log.update(self)
        if not self._reads_wal:
            self._primary_heard_at = now  # its answers wait in the socket
        if now >= self._next_report:
            self._next_report = now + REPORT_SECONDS
            upstream.report(self.core.commit_lsn, reply_requested=True)
        feedback = self._standby_feedback.due(self.core.peers, self.now_ms)
        if feedback is not None:
            upstream.report_feedback(feedback)
        if now >= self._next_probe and not self.core.quorum_is_connected:
            self._next_probe = now + PROBE_SECONDS
            pgconn = upstream.copy.pgconn
            self._loop.in_thread(lambda: is_shutting_down(pgconn), self._probed)

    def _watch_quorum(self) -> None:
        leader = self.core.leader
        if leader is not None and self.is_leading:
            self.quorum_watch.update(
                ok=leader.quorum_is_connected,
                unconfirmed_bytes=leader.window.record_end_lsn - self.core.commit_lsn,
                commit_lsn=self.core.commit_lsn,
            )

    def _probed(self, is_stopping: bool | WalProposerError) -> None:
        """A primary that shuts down waits for us, and without a quorum it would wait forever."""
        if is_stopping is True and not self.core.quorum_is_connected:
            self._lost = PrimaryLost("the primary is shutting down while the quorum is lost")
            self._changed()

    # ---- safekeepers

    def _tail_read(self, donor: int, result: bytes | WalProposerError) -> None:
        if isinstance(result, WalProposerError):
            self.peers.drop(donor, str(result))
            self._step(PeerLost(donor, str(result)))
        else:
            self._step(TailRead(result))

    def _catch_up_lost(self, lost: CatchUpLost) -> None:
        progress = self.core.peers[lost.peer]
        known = progress.error
        self._take(lost)
        if progress.state is PeerState.LEFT_BEHIND and progress.error != known:
            address = self.peers.addresses[lost.peer]
            log.error("safekeeper left behind", safekeeper=str(address), reason=progress.error)

    # ---- changes of the members

    @property
    def known_addresses(self) -> tuple[SafekeeperAddress, ...]:
        """For the next incarnation: of the members, and of others where a safekeeper answered."""
        membership = self.core.membership
        listed = membership.roster if membership is not None else ()
        named = [self.config.safekeeper(m.host, m.port) for m in listed if m.host]
        return tuple(dict.fromkeys((*self.peers.addresses.values(), *named)))

    def request(self, request: ChangeRequest) -> None:
        """Before `run`: the change to make. Without a primary `run` then ends."""
        self._step(ChangeRequested(request))

    def call(self, callback: Callable[[], None]) -> None:
        """Call `callback` between two events, on the thread that runs. For any thread. Does nothing
        after the end."""
        self._loop.call(callback)

    def step(self, event: ChangeRequested | ChangeCancelled | OutsiderNamed | RoundWanted) -> None:
        """For callbacks of `call`."""
        self._step(event)

    def _join(self, action: Join) -> None:
        address, timeline = self.peers.addresses[action.peer], self.core.candidacy.timeline
        membership = self.core.membership
        assert membership is not None
        members = [
            self.peers.addresses[p.peer]
            for p in self.core.peers
            if p.safekeeper_id in membership.all_members and p.peer in self.peers.addresses
        ]
        log.info("a safekeeper joins", safekeeper=str(address), id=action.member.id)

        def done(result: WalProposerError | None) -> None:
            if result is None:
                self._step(Joined(action.peer))
                return
            is_gone = isinstance(result, Unreachable) or result.sqlstate.startswith(MAY_PASS)
            log.warning("safekeeper does not join", safekeeper=str(address), reason=str(result))
            self._step(Joined(action.peer, str(result), is_refused=not is_gone))

        self._loop.in_thread(
            lambda: join(address, timeline, action.member, action.offer, action.limit_lsn, members),
            done,
        )

    def _leave(self, action: Leave) -> None:
        address, timeline = self.peers.addresses[action.peer], self.core.candidacy.timeline

        def done(result: WalProposerError | None) -> None:
            if result is None:
                log.info("a safekeeper has left", safekeeper=str(address))
            else:
                log.warning("safekeeper did not leave", safekeeper=str(address), reason=str(result))
            self._step(Left(action.peer, str(result or "")))

        who = action.safekeeper_id, action.instance
        self._loop.in_thread(lambda: leave(address, timeline, *who, action.membership), done)

    # ---- the primary

    def _upstream_started(self, result: int | WalProposerError) -> None:
        if isinstance(result, WalProposerError):
            raise result if isinstance(result, Refusal) else PrimaryLost(str(result))
        upstream, config = self.upstream, self.config
        assert upstream is not None
        self._primary_heard_at = time.monotonic()
        self._step(UpstreamStarted(result))
        if upstream.copy is not None:
            self._loop.watch(upstream.copy, self._upstream_ready, upstream.copy.flush)
            log.info("streaming from the primary", primary=str(config.primary))
            if self.core.membership is not None:
                for problem in config.chains.problems(self.core.membership):
                    log.warning("members stream from the proposer directly", reason=problem)
            self._upstream_ready()  # input may have arrived already, see CopyConnection

    def _upstream_ready(self) -> None:
        upstream = self.upstream
        assert upstream is not None
        begin_lsn = upstream.next_lsn
        chunks, reply_requested = upstream.receive()
        for wal in joined(chunks):
            self._step(WalReceived(begin_lsn, wal))
            begin_lsn += len(wal)
        self._primary_heard_at = time.monotonic()
        self._gather_until = self._primary_heard_at + GATHER_SECONDS
        if reply_requested:
            upstream.report(self.core.commit_lsn)

    # ---- progress; read by other threads

    @property
    def is_leading(self) -> bool:
        return self.core.state is State.LEADING

    @property
    def has_caught_up(self) -> bool:
        """Whether the quorum has what the primary had when the connection was made."""
        upstream = self.upstream
        return upstream is None or self.commit_signal.commit_lsn >= upstream.primary.flush_lsn

    @property
    def stalled_seconds(self) -> float:
        """How late the loop is for a tick, which comes every TICK_SECONDS."""
        late_seconds = time.monotonic() - self.now_ms / 1000 - TICK_SECONDS
        return max(0.0, late_seconds) if self.now_ms else 0.0

    @property
    def primary_silent_seconds(self) -> float | None:
        """Time from the primary's last answer, which is requested each second, to the last tick.
        None if the primary does not stream."""
        if self.upstream is None or self.upstream.copy is None:
            return None
        return max(0.0, self.now_ms / 1000 - self._primary_heard_at)
