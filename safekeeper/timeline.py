"""One timeline on this safekeeper: the shell around its acceptor.

It serialises events under one lock, executes the acceptor's actions in their order, and publishes
positions only after that; so nobody ever sees a state that is ahead of the disk. At the first
storage failure it stops: the acceptor is thrown away, its connections are closed, and every later
command is refused with the reason. Only a full disk heals by itself, by loading the timeline anew
as after a start; a failed fsync stays failed until an operator restarts the process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import assert_never

import structlog
from msgspec import structs

from consensus.codec import decode_proposer_message, encode
from consensus.messages import HotStandbyFeedback, ProposerMessage, SafekeeperMessage
from pgwal.lsn import format_lsn
from safekeeper.acceptor import Acceptor
from safekeeper.archive_progress import ArchiveProgress, ArchiveSettings
from safekeeper.control_file import ControlFile, Hints
from safekeeper.control_state import ControlState
from safekeeper.damage import Holes
from safekeeper.errors import SafekeeperError, TimelineError
from safekeeper.events import (
    Action,
    BatchEnded,
    ChainedWal,
    CloseConnection,
    Disconnected,
    Event,
    FeedbackChanged,
    FlushWal,
    HolesChanged,
    PersistControl,
    Received,
    Refuse,
    Reply,
    TakeWal,
    TruncateWal,
    WriteWal,
)
from safekeeper.proposer_connection import LastProposers, ProposerConnection
from safekeeper.recovery import DamagedLog, recovered_end
from safekeeper.replicas import Replicas
from safekeeper.retention import DEFAULT_RETENTION, RetentionPolicy
from safekeeper.room import Room
from safekeeper.sleep import Sleep
from safekeeper.slots import Slots
from safekeeper.steady_path import HINTS_BYTES_MAX, SteadyPath
from safekeeper.timeline_hooks import TimelineHooks
from safekeeper.timeline_state import Positions, TimelineState, resting_state
from safekeeper.wal_store import WalStore
from safekeeper.watchers import Watchers
from storage.compiled import compiled
from storage.durable import DISK_FULL
from storage.errors import StorageError

log = structlog.get_logger()


class Refused(SafekeeperError):
    """The acceptor refused a message; the connection ends with this error."""


class Timeline:
    """Thread-safe; `positions` and `control` may be read without the lock."""

    #: Compiled, where it can be.
    steady_path_class: type[SteadyPath] = compiled("safekeeper.steady_path").SteadyPath

    def __init__(
        self,
        safekeeper_id: int,
        instance: bytes,
        directory: Path,
        control: ControlFile,
        hooks: TimelineHooks,
        retention: RetentionPolicy = DEFAULT_RETENTION,
        archive: ArchiveSettings | None = None,
        *,
        is_awake: bool = True,
    ) -> None:
        """Without `is_awake` it sleeps until it is used, unless some of its WAL is missed."""
        self.safekeeper_id = safekeeper_id
        self.instance = instance
        self.directory = directory
        self._control_file = control
        self.hooks = hooks
        self.lock = Lock()
        self.watchers = Watchers()
        self._positions = Positions(0, 0, 0, 0)
        self.state = TimelineState.CREATING
        self.stopped_reason = ""
        self._heals = False
        self._connections: dict[int, ProposerConnection] = {}
        self.last_proposers = LastProposers()
        self.hinted_lsn = 0
        self.retention = retention
        self.room = Room(self)
        self.sleep = Sleep(self, self._load, self._put_away)
        #: How far the archive is; None without one.
        self.archive = ArchiveProgress(archive, control.state.local_start_lsn) if archive else None
        #: Reads WAL that has left the disk, from (lsn, length); None without an archive.
        self.read_archived: Callable[[int, int], bytes] | None = None
        self.slots = Slots(directory)
        self.holes = Holes(directory)
        self.replicas = Replicas(self._set_feedback)
        self._acceptor: Acceptor | None = None
        self._steady: SteadyPath | None = None
        if is_awake or self.control.has_left or self.sleep.misses_wal():
            self._load()
        else:
            self._rest()

    # ---- start and stop

    @property
    def control(self) -> ControlState:
        """What is on disk."""
        return self._control_file.state

    def is_of_tenant(self, tenant_id: bytes) -> bool:
        """It has WAL of him here: one that has left has none."""
        control = self.control
        return control.timeline.tenant_id == tenant_id and not control.has_left

    @property
    def positions(self) -> Positions:
        """What is on disk, and others may see."""
        steady = self._steady
        return self._positions if steady is None else steady.positions()

    @property
    def streaming(self) -> ProposerConnection | None:
        """The connection whose Append would be accepted."""
        acceptor = self._acceptor
        number = acceptor.streaming if acceptor is not None else None
        return self._connections.get(number) if number is not None else None

    def _load(self, valid_lsn: int | None = None) -> None:
        """Begin anew by what is on disk. From `valid_lsn` on the log is known to be damaged."""
        self._end_steady()
        self.store = self.new_store()
        self._acceptor = None
        if self.control.has_left:
            self._begin(self.control.horizon_lsn)
            return
        try:
            self._begin(recovered_end(self, self._control_file, valid_lsn))
        except StorageError as error:
            self._stop(error)
        except DamagedLog as error:
            self._declare_damaged(str(error))

    def _begin(self, flush_lsn: int) -> None:
        control, self.sleep.is_checked = self.control, True
        self._acceptor = Acceptor(self.safekeeper_id, self.instance, control, flush_lsn)
        self._acceptor.step(FeedbackChanged(self.replicas.feedback))
        self._acceptor.step(HolesChanged(bool(self.holes)))
        self.hinted_lsn = control.commit_lsn
        self.state, self.stopped_reason = resting_state(control), ""
        self._publish()

    def lose_from(self, lsn: int) -> None:
        """The log is damaged at `lsn`, above the committed segments: its end is lost (rule 9).
        Raises StorageError."""
        with self.lock:
            if self._acceptor is None or lsn >= self.positions.flush_lsn:
                return
            flushed = replace(self.control, flush_lsn=self.positions.flush_lsn)
            self._control_file.persist(flushed)
            self._end_steady()
            self.store.abandon()
            self._close_connections(f"WAL is damaged at {format_lsn(lsn)}")
            self._load(lsn)

    def holes_changed(self) -> None:
        """Segments were found damaged, or were mended."""
        with self.lock:
            if self._acceptor is not None:
                self._run([HolesChanged(bool(self.holes))])

    def _declare_damaged(self, reason: str) -> None:
        """Nothing on disk is touched: it is evidence, and may be all that is left."""
        self.state = TimelineState.DAMAGED
        self.stopped_reason = reason
        log.error("timeline is damaged", timeline=str(self.control.timeline), reason=reason)

    def fail(self, error: Exception) -> None:
        if not isinstance(error, SafekeeperError | StorageError):
            error = SafekeeperError(f"unexpected {type(error).__name__}: {error}")
        self._stop(error)

    def _stop(self, error: SafekeeperError | StorageError) -> None:
        """From here on nothing is written, and nothing is believed that is not on disk."""
        self._end_steady()
        self._acceptor = None
        self.store.abandon()
        self.state = TimelineState.STOPPED
        self.stopped_reason = str(error)
        self._heals = error.sqlstate == DISK_FULL
        if self._heals:
            self.stopped_reason += (
                "; it comes back by itself when that is mended and "
                f"{self.room.bytes_to_begin} bytes are free"
            )
        log.error(
            "timeline stopped", timeline=str(self.control.timeline), reason=self.stopped_reason
        )
        self._close_connections(str(error))
        self.watchers.notify()

    @property
    def is_readable(self) -> bool:
        """What was committed can be read, and removed: it takes part, or waits for room."""
        return self.state is TimelineState.ACTIVE or self._heals

    def _close_connections(self, reason: str) -> None:
        """What they had sent and nobody has read yet is never looked at."""
        for connection in self._connections.values():
            connection.close(reason)
        self._connections.clear()

    def maybe_heal(self, free_bytes: int) -> None:
        """After a full disk or archive backlog: load again once there is room."""
        if self._heals and self.room.is_back(free_bytes):
            with self.lock:
                self._heals = False
                self._load()

    def amend(self, change: Callable[[ControlState], ControlState], reason: str) -> None:
        """Begin anew by what `change` makes of the durable state. Raises what it raises."""
        with self.lock:
            self.sleep.end()
            self._check_usable()
            self._run([Disconnected(0)])
            control = replace(self.control, flush_lsn=self.positions.flush_lsn)
            if (state := change(control)) != control:
                self._control_file.persist(state)
                self._close_connections(reason)
                self._load()
                self.hooks.wants_housekeeping()

    def close(self, reason: str) -> None:
        """An orderly end: flush, and save the hints. Raises StorageError."""
        with self.lock:
            if self._acceptor is None and not self.sleep.is_asleep:
                return
            if self.state is TimelineState.LEFT:
                self._acceptor = None
            elif self._acceptor is not None:
                self._put_away()
            self.sleep.is_asleep = False
            self.state = TimelineState.STOPPED
            self.stopped_reason = reason
            self._close_connections(reason)

    def finish(self, change: Callable[[ControlState], ControlState], reason: str) -> None:
        """The log of this object ends: after what `change` makes of its state, durably, it does and
        saves nothing more, and its files are for the caller to remove. In whatever state it was: a
        damaged member is replaced, and leaves. Raises what `change` raises, and StorageError."""
        with self.lock:
            state = change(self.control)
            self._end_steady()
            try:
                self._control_file.finish(state)
            except StorageError as error:
                self._stop(error)
                raise
            self._acceptor, self._heals, self.sleep.is_asleep = None, False, False
            self.store.abandon()
            self.holes.finish()
            self.state, self.stopped_reason = TimelineState.LEFT, reason
            self._close_connections(reason)
            self.watchers.notify()

    def _put_away(self) -> None:
        """All is on disk, and nothing is open. Raises StorageError."""
        self._run([Disconnected(0)])
        self._control_file.persist_hints(self._hints)
        self.store.checked.save()
        self.slots.save()
        try:
            self.store.close()
        except StorageError as error:
            self._stop(error)
            raise
        self._acceptor = None

    def _rest(self) -> None:
        """Asleep from the start on: what is known of the log is what was saved, with each second
        that it moved and with an orderly end."""
        control, flush_lsn = self.control, self.control.horizon_lsn
        self._positions = Positions(flush_lsn, flush_lsn, control.commit_lsn, control.truncate_lsn)
        self.state = resting_state(control)
        self.sleep.begin_unseen()

    @property
    def is_at_rest(self) -> bool:
        """It is well, and nobody streams to it or from it. One that has left has nothing open."""
        if self._acceptor is None or self.state is TimelineState.LEFT:
            return False
        return not (self._connections or self.replicas.all())

    def new_store(self) -> WalStore:
        """Not recovered: nothing is known of what lies there."""
        control = self.control
        return WalStore(
            self.directory / "wal", control.server, control.tli_history, self.room.check
        )

    # ---- events

    def connect(self, connection: ProposerConnection) -> None:
        """Raises TimelineError when the timeline cannot take part."""
        with self.lock:
            self.sleep.end()
            self._check_usable()
            self._connections[connection.number] = connection
            self.last_proposers.newest = connection

    def disconnect(self, connection: ProposerConnection) -> None:
        """Flush what the connection wrote, and forget it."""
        with self.lock:
            self.sleep.used()
            self.last_proposers.gone(connection)
            if self._connections.pop(connection.number, None) is not None and self._acceptor:
                self._run([Disconnected(connection.number)])

    def receive(
        self, connection: int, messages: Iterable[ProposerMessage]
    ) -> list[SafekeeperMessage]:
        """One batch: all that has arrived, one flush. Returns the answers, to be sent in order.

        Raises Refused, StorageError or TimelineError; the connection ends then.
        """
        with self.lock:
            self._check_usable()
            if connection not in self._connections:
                raise TimelineError("a newer connection took over", sqlstate="55000")
            events: list[Event] = [Received(connection, message) for message in messages]
            events.append(BatchEnded(connection))
            replies = self._run(events)
            if self._acceptor and self._acceptor.streaming == connection:
                self.last_proposers.leader = self._connections[connection]
            self._steady = self.steady_path_class.of(self, self._acceptor)
            return replies

    def receive_payloads(self, connection: int, payloads: Sequence[memoryview]) -> list[bytes]:
        """The same on the wire's bytes. Raises MessageError, too."""
        messages = [decode_proposer_message(payload) for payload in payloads]
        return [encode(reply) for reply in self.receive(connection, messages)]

    def receive_chained(self, connection: int, events: Sequence[ChainedWal]) -> list[bytes]:
        """One batch of what TakeWal ordered: one flush. Raises as `receive` does."""
        with self.lock:
            self._check_usable()
            return [encode(reply) for reply in self._run([*events, BatchEnded(connection)])]

    def steady_path(self, connection: int) -> SteadyPath | None:
        """By which the connection's next Appends may be taken."""
        steady = self._steady
        return steady if steady is not None and steady.connection == connection else None

    def _end_steady(self) -> None:
        """The lock is held. What was taken by the steady path is on disk, and published."""
        steady = self._steady
        if steady is None:
            return
        steady.is_over = True
        self._positions, self._steady = steady.positions(), None  # in this order: never backwards
        if steady.has_taken and self._acceptor is not None:
            steady.hand_over(self._acceptor)
            self.store.end_lsn = steady.written_lsn

    def _check_usable(self) -> None:
        if self._acceptor is None:
            raise TimelineError(
                f"timeline {self.control.timeline} is {self.state.value}: {self.stopped_reason}",
                # A proposer counts on what a stopped one has acknowledged, not on a damaged one.
                sqlstate="XX001" if self.state is TimelineState.DAMAGED else "57P03",
            )

    def _run(self, events: Iterable[Event]) -> list[SafekeeperMessage]:
        """Step and execute; the lock is held.

        A failure, whatever it is, stops the timeline: the acceptor is ahead of the disk then. Only
        a refusal is none: it is the acceptor's own answer.
        """
        assert self._acceptor is not None
        self._end_steady()
        replies: list[SafekeeperMessage] = []
        try:
            for event in events:
                for action in self._acceptor.step(event):
                    self._execute(action, replies)
        except Refused:
            raise
        except Exception as error:
            self.fail(error)
            raise
        self._publish()
        return replies

    def _execute(self, action: Action, replies: list[SafekeeperMessage]) -> None:
        # The three of every commit come first, and by their type: a class pattern costs five times
        # as much.
        if type(action) is WriteWal:
            self.store.write(action.begin_lsn, action.wal)
            return
        if type(action) is FlushWal:
            self._flush()
            return
        if type(action) is Reply:
            replies.append(action.message)
            return
        match action:
            case PersistControl(state):
                if state.flush_lsn < self.positions.flush_lsn:  # before a truncation
                    self._positions = structs.replace(self.positions, flush_lsn=state.flush_lsn)
                self._control_file.persist(state)
                self.store.adopt(state.tli_history)
            case TruncateWal(end_lsn):
                self.store.truncate(end_lsn)
            case TakeWal(connection):
                self._connections[connection].take_wal(action)
            case CloseConnection(connection, reason):
                if connection in self._connections:
                    self._connections.pop(connection).close(reason)
            case Refuse(_, sqlstate, message, hint):
                raise Refused(message, sqlstate=sqlstate, hint=hint)
            case _:
                assert_never(action)

    def _flush(self) -> None:
        begun = time.perf_counter()
        self.store.flush()
        self.hooks.flush_times.observe(time.perf_counter() - begun)

    def _publish(self) -> None:
        acceptor = self._acceptor
        assert acceptor is not None
        self._positions = Positions(
            acceptor.written_lsn, acceptor.flush_lsn, acceptor.commit_lsn, acceptor.truncate_lsn
        )
        if acceptor.commit_lsn - self.hinted_lsn >= HINTS_BYTES_MAX:
            self.hooks.wants_housekeeping()
        self.watchers.notify()

    # ---- replicas

    def _set_feedback(self, feedback: HotStandbyFeedback) -> None:
        with self.lock:
            if self._acceptor is not None:
                self._run([FeedbackChanged(feedback)])

    # ---- off the append path

    def keep_house(self) -> None:
        """Save the positions, and have the next segment ready. Raises StorageError, which harms
        nothing here: the append path meets the same disk and stops the timeline itself."""
        if self._acceptor is None or self.state is not TimelineState.ACTIVE:
            return
        self.save_positions()
        if self._connections:
            self.store.prepare_next_segment()

    def advance_local_start(self, lsn: int) -> None:
        """Durably: the log here begins at `lsn`, a segment's start. Raises StorageError."""
        positions = self.positions
        assert lsn % self.control.server.wal_seg_size == 0
        assert lsn <= min(positions.commit_lsn, positions.flush_lsn)
        self._control_file.persist_hints(lambda: replace(self._hints(), local_start_lsn=lsn))

    def save_positions(self) -> None:
        """How far the log is flushed, the hints, and the checksums of full segments, as far as they
        are new. Raises StorageError."""
        if self._acceptor is not None and self.state is TimelineState.ACTIVE:
            self.hinted_lsn = self.positions.commit_lsn
            self._control_file.persist_hints(self._hints)
            self.store.checked.save()

    def _hints(self) -> Hints:
        """What was published, and so is on disk; the acceptor may be in the middle of a step."""
        positions = self.positions
        return Hints(
            flush_lsn=positions.flush_lsn,
            commit_lsn=positions.commit_lsn,
            truncate_lsn=positions.truncate_lsn,
            archived_lsn=self.archive.archived_lsn if self.archive is not None else 0,
        )
