"""The coordinator: connects the port, the limbo and the sessions on the primary. The shell.

    incarnation --commit_lsn, rounds--> |              | <--questions-- clients (verdict_server.py)
    primary ----readings, stream------> | Limbo (pure) | --verdicts-->
    primary <---COMMIT PREPARED-------- |              |

One thread runs the port's loop and steps the core. Other threads do everything that may block. The
coordinator outlives the incarnations of its process: `Led` begins one that leads, and after
`Fenced` nothing is answered. It does not touch the loop that commits. It registers the next
position it waits for, and the loop signals it there (`stream/commit_signal.py`). A bug in any of
its threads ends it: it answers no more questions, and its status and /healthz report that.

Laws: docs/qsync.md, kept by `limbo.py`. Here: the end of an incarnation is reported before anything
of the next one, and each question is answered once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import Any, assert_never

import structlog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.quorum import quorum_size
from quorum_wal.walproposer.config import ProposerConfig, QsyncConfig
from quorum_wal.walproposer.qsync import limbo_events as core
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import NEVER_LSN, Event, LimboSettings, Order
from quorum_wal.walproposer.qsync.primary_sessions import PrimarySessions
from quorum_wal.walproposer.qsync.qsync_status import failed_status, qsync_status
from quorum_wal.walproposer.qsync.questions import Questions
from quorum_wal.walproposer.qsync.verdict_server import PortConfig, VerdictServer
from quorum_wal.walproposer.stream.event_loop import EventLoop
from quorum_wal.walproposer.stream.events import RoundWanted
from quorum_wal.walproposer.stream.incarnation import Incarnation
from quorum_wal.walproposer.stream.progress import PeerState

log = structlog.get_logger()

TICK_SECONDS = 0.1
# Waiting clients get the answer at their deadline with this precision.
WAITING_TICK_SECONDS = 0.02
STOP_SECONDS = 5.0
#: If members in a daisy chain have not answered a round by then, the primary writes WAL for them.
SILENT_ROUND_SECONDS = 0.2


class Coordinator:
    """Methods for other threads say so. The others are for its own thread."""

    def __init__(self, config: ProposerConfig, limbo_max: int) -> None:
        """Listens from now on. Raises WalProposerError, AccessError."""
        assert config.qsync is not None
        self._address = config.primary
        self.limbo = Limbo(limbo_settings(config.qsync, limbo_max))
        self.sessions: PrimarySessions | None = None
        self._questions = Questions(self)
        self._loop = EventLoop()
        port = PortConfig(config.qsync.host, config.qsync.port, config.qsync.access)
        try:
            self._server = VerdictServer(port, self._questions, self._loop)
        except BaseException:
            self._loop.close()
            raise
        self._clock_ms = unix_clock_ms()
        self._incarnation: Incarnation | None = None
        #: The last commit_lsn of this incarnation that was passed to the core.
        self._told_lsn = 0
        self._round_wanted_at = 0.0
        self._next_tick = self._next_status = 0.0
        self._adopted = 0
        self._is_closing = False
        self._error = ""
        self._status: dict[str, Any] = self.new_status()
        self._thread = Thread(target=self._run, name="qsync", daemon=True)

    @property
    def address(self) -> str:
        return self._server.address

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Waiting clients get an error: the outcome is not known."""
        self._loop.call(self._close)
        if self._thread.ident is not None:
            self._thread.join(STOP_SECONDS)

    # ---- for other threads

    @property
    def status(self) -> dict[str, Any]:
        """The status of a moment ago."""
        return failed_status(self._status, self._error) if self._error else self._status

    @property
    def error(self) -> str:
        """The bug that ended it; "" while it answers."""
        return self._error

    def failed(self, bug: Exception) -> None:
        """A bug in another thread of ours: raise it here too."""

        def fail() -> None:
            raise bug

        self._loop.call(fail)

    def begin(self, incarnation: Incarnation) -> None:
        """The incarnation is about to run."""
        signal = incarnation.commit_signal
        signal.reached = lambda: self._loop.call(partial(self._reached, incarnation))
        signal.round_answered = lambda number: self._loop.call(
            partial(self._round_answered, incarnation, number)
        )
        signal.wake_at(1)
        self._loop.call(partial(self._begin, incarnation))

    def end(self, incarnation: Incarnation, reason: str) -> None:
        """The incarnation has ended, and confirms nothing any more."""
        self._loop.call(partial(self._end, incarnation, reason))

    # ---- the loop

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._loop.run_once(max(0.0, self._next_tick - time.monotonic()))
                now = time.monotonic()
                if now >= self._next_tick and not self._is_closing:
                    self._tick()
                    waits = bool(self._questions)
                    self._next_tick = now + (WAITING_TICK_SECONDS if waits else TICK_SECONDS)
        except Exception as bug:
            self._error = f"qsync has failed: {bug!r}"
            log.critical("qsync has failed, and answers no more questions", reason=repr(bug))
            self._close()
            raise
        finally:
            self._loop.close()

    def _close(self) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        try:
            self._fence("the proposer is shutting down")
        finally:
            self._server.close()

    def _tick(self) -> None:
        incarnation = self._incarnation
        if incarnation is not None:
            if self.limbo.led is None and incarnation.is_leading:
                self._lead(incarnation)
            if self.limbo.led is not None:
                self.advance()
                is_ok = incarnation.quorum_watch.ok
                if is_ok is not self.limbo.is_quorum_ok:
                    self.step(core.QuorumChanged(is_ok))
                self._request_wal(incarnation)
        self.step(core.Tick(self._clock_ms()))
        now = time.monotonic()
        if now >= self._next_status:
            self._next_status = now + TICK_SECONDS
            self._status = self.new_status()

    def step(self, event: Event) -> None:
        """The only way into the core. After a bug it is not used any more."""
        if self._error:
            return
        for action in self.limbo.step(event):
            self._execute(action)
        incarnation = self._incarnation
        if incarnation is not None and self.limbo.led is not None:
            wake_lsn = self.limbo.wake_lsn
            if wake_lsn != NEVER_LSN:
                wake_lsn = max(wake_lsn, self._told_lsn + 1)  # the core knows it already
            incarnation.commit_signal.wake_at(wake_lsn)

    def _execute(self, action: core.Action) -> None:
        match action:
            case core.Answer():
                self._questions.answered(action)
            case core.RefuseWait():
                self._questions.refused(action)
            case core.Finish():
                assert self.sessions is not None
                self.sessions.finish(action)
            case core.Read():
                assert self.sessions is not None
                self.sessions.read()
            case core.Alarm(text):
                log.warning("qsync", alarm=text)
            case _:
                assert_never(action)

    # ---- incarnations

    def _begin(self, incarnation: Incarnation) -> None:
        self._fence("another incarnation begins")
        self._incarnation = incarnation

    def _end(self, incarnation: Incarnation, reason: str) -> None:
        if incarnation is self._incarnation:
            self._fence(reason)

    def _fence(self, reason: str) -> None:
        """From here on nothing is answered."""
        self._incarnation = None
        if self.limbo.led is not None:
            self.step(core.Fenced(reason))
        if self.sessions is not None:
            self.sessions.close()
            self.sessions = None
        self._told_lsn = 0
        self._round_wanted_at = 0.0

    def _lead(self, incarnation: Incarnation) -> None:
        leader, upstream = incarnation.core.leader, incarnation.upstream
        assert leader is not None
        assert upstream is not None
        node_id, primary = leader.term.node_id, upstream.primary
        self.sessions = PrimarySessions(self._address, primary, node_id, self._tell, self.failed)
        term_start_lsn, history = leader.term.term_start_lsn, primary.tli_history
        self.step(core.Led(node_id, term_start_lsn, history, primary.start_us))
        log.info("qsync coordinator leads", term=node_id.term, listen=self.address)

    def _tell(self, event: core.Decoded | core.LimboRead | core.FinishEnded) -> None:
        """From any thread."""
        self.post(partial(self._told, event))

    def _told(self, event: core.Decoded | core.LimboRead | core.FinishEnded) -> None:
        led, sessions = self.limbo.led, self.sessions
        if led is None or sessions is None or event.node_id != led.node_id:
            return
        is_first = isinstance(event, core.LimboRead) and not self.limbo.has_read
        self.step(event)
        if isinstance(event, core.LimboRead):
            sessions.was_read(event.entries)
            if is_first:
                self._adopt()

    def _adopt(self) -> None:
        """Count the transactions found prepared when an incarnation begins to lead. It finishes
        them."""
        count = len(self.limbo.table.entries)
        self._adopted += count
        if count:
            log.info("qsync adopted prepared transactions", count=count)

    def _reached(self, incarnation: Incarnation) -> None:
        """commit_lsn has reached the registered position."""
        if incarnation is not self._incarnation:
            return
        if self.limbo.led is None and incarnation.is_leading:
            self._lead(incarnation)
        self.advance()

    def advance(self) -> None:
        """Pass the current commit_lsn to the core."""
        incarnation, led = self._incarnation, self.limbo.led
        if incarnation is None or led is None:
            return
        commit_lsn = incarnation.commit_signal.commit_lsn
        if commit_lsn > self._told_lsn:
            self._told_lsn = commit_lsn
            self.step(core.CommitAdvanced(led.node_id, commit_lsn))

    # ---- rounds

    @property
    def round(self) -> int:
        """The number of the newest round that has begun."""
        leader = self._incarnation.core.leader if self._incarnation is not None else None
        return leader.rounds.number if leader is not None else 0

    def want_round(self) -> None:
        """Request a round that begins from now on."""
        incarnation = self._incarnation
        if incarnation is not None:
            self._round_wanted_at = self._round_wanted_at or time.monotonic()
            incarnation.call(lambda: incarnation.step(RoundWanted()))

    def _round_answered(self, incarnation: Incarnation, number: int) -> None:
        led = self.limbo.led
        self._round_wanted_at = 0.0
        if incarnation is self._incarnation and led is not None:
            self.step(core.RoundAnswered(led.node_id, number))

    def _request_wal(self, incarnation: Incarnation) -> None:
        """Members in a daisy chain confirm the term only when they receive new WAL (`rounds.py`),
        and an idle primary writes none. So make it write some."""
        wanted_at, now = self._round_wanted_at, time.monotonic()
        if not wanted_at or now - wanted_at < SILENT_ROUND_SECONDS or self.sessions is None:
            return
        if any(p.state is PeerState.CHAINED for p in incarnation.core.peers):
            self._round_wanted_at = now
            self.sessions.write_wal()

    # ---- for questions

    def post(self, callback: Callable[[], None]) -> None:
        """For any thread: call `callback` on ours."""
        self._server.post(callback)

    def deadline_ms(self, timeout_ms: int) -> int:
        """In the core's time. 0: ask once."""
        return self._clock_ms() + timeout_ms if timeout_ms else 0

    def new_status(self) -> dict[str, Any]:
        led = self.limbo.led
        node_id: NodeId | None = led.node_id if led is not None else None
        return qsync_status(
            self.limbo,
            node_id,
            quorum=self._quorum(),
            address=self.address,
            waiting=len(self._questions),
            adopted=self._adopted,
            confirm_lag_seconds=self._questions.confirm_lag_seconds,
            streams=self.sessions.stream_states if self.sessions is not None else {},
        )

    def _quorum(self) -> int:
        """The size of a quorum; while the members change, of the set that needs more."""
        membership = self._incarnation.core.membership if self._incarnation is not None else None
        groups = membership.groups if membership is not None else ()
        return max((quorum_size(len(group)) for group in groups), default=0)


def limbo_settings(config: QsyncConfig, limbo_max: int) -> LimboSettings:
    return LimboSettings(
        limbo_max=limbo_max,
        age_max_ms=round(config.age_max_seconds * 1000),
        orphan_grace_ms=round(config.orphan_grace_seconds * 1000),
        order=Order.FIFO if config.is_fifo else Order.ANY,
    )


def unix_clock_ms() -> Callable[[], int]:
    """Milliseconds since the Unix epoch: the wall clock's value now, advanced by the monotonic
    clock."""
    begun_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
    return lambda: begun_ms + time.monotonic_ns() // 1_000_000
