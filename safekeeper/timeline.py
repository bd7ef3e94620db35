"""One timeline on this safekeeper: the shell around its acceptor.

It serialises events under one lock, executes the acceptor's actions in their order, and publishes
positions only after that. So a published position is never ahead of the disk. At the first storage
failure it stops: the acceptor is discarded, its connections are closed, and every later command is
refused with the reason. After a full disk the timeline resumes without a restart, by loading its
state again. A failed fsync stays failed until an operator restarts the process.
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

from quorum_wal.consensus.codec import decode_proposer_message, encode
from quorum_wal.consensus.messages import HotStandbyFeedback, ProposerMessage, SafekeeperMessage
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.archive_progress import ArchiveProgress, ArchiveSettings
from quorum_wal.safekeeper.control_file import ControlFile, Hints
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.damage import Holes
from quorum_wal.safekeeper.errors import SafekeeperError, TimelineError
from quorum_wal.safekeeper.events import (
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
from quorum_wal.safekeeper.proposer_connection import LastProposers, ProposerConnection
from quorum_wal.safekeeper.recovery import DamagedLog, recovered_end
from quorum_wal.safekeeper.replicas import Replicas
from quorum_wal.safekeeper.retention import DEFAULT_RETENTION, RetentionPolicy
from quorum_wal.safekeeper.room import Room
from quorum_wal.safekeeper.sleep import Sleep
from quorum_wal.safekeeper.slots import Slots
from quorum_wal.safekeeper.steady_path import HINTS_BYTES_MAX, SteadyPath
from quorum_wal.safekeeper.timeline_hooks import TimelineHooks
from quorum_wal.safekeeper.timeline_state import Positions, TimelineState, healthy_state
from quorum_wal.safekeeper.wal_store import WalStore
from quorum_wal.safekeeper.watchers import Watchers
from quorum_wal.storage.compiled import compiled
from quorum_wal.storage.durable import DISK_FULL
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()


class Refused(SafekeeperError):
    """The acceptor refused a message; the connection ends with this error."""


class Timeline:
    """Thread-safe; `positions` and `control` may be read without the lock."""

    #: Compiled, if possible.
    steady_path_class: type[SteadyPath] = compiled("quorum_wal.safekeeper.steady_path").SteadyPath

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
        """Without `is_awake` it sleeps until it is used, unless some of its WAL is missing."""
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
        #: It stopped for lack of space, and resumes when there is space again.
        self._may_resume = False
        self._connections: dict[int, ProposerConnection] = {}
        self.last_proposers = LastProposers()
        self.hinted_lsn = 0
        self.retention = retention
        self.room = Room(self)
        self.sleep = Sleep(self, self._load, self._save_and_close)
        #: Progress of archiving; None without an archive.
        self.archive = ArchiveProgress(archive, control.state.local_start_lsn) if archive else None
        #: Reads WAL that was removed from the disk, by (lsn, length); None without an archive.
        self.read_archived: Callable[[int, int], bytes] | None = None
        self.slots = Slots(directory)
        self.holes = Holes(directory)
        self.replicas = Replicas(self._set_feedback)
        #: The core, for reading; None while the timeline is asleep, and after it has stopped.
        self.acceptor: Acceptor | None = None
        self._steady: SteadyPath | None = None
        if is_awake or self.control.has_left or self.sleep.is_wal_missing():
            self._load()
        else:
            self._start_asleep()

    # ---- start and stop

    @property
    def control(self) -> ControlState:
        """The control state on disk."""
        return self._control_file.state

    def is_of_tenant(self, tenant_id: bytes) -> bool:
        """Whether it has WAL of the tenant here; a timeline that was left has none."""
        control = self.control
        return control.timeline.tenant_id == tenant_id and not control.has_left

    @property
    def positions(self) -> Positions:
        """The published positions, which are on disk."""
        steady = self._steady
        return self._positions if steady is None else steady.positions()

    @property
    def streaming(self) -> ProposerConnection | None:
        """The connection whose Append would be accepted."""
        acceptor = self.acceptor
        number = acceptor.streaming if acceptor is not None else None
        return self._connections.get(number) if number is not None else None

    def _load(self, valid_lsn: int | None = None) -> None:
        """Load the state from disk. From `valid_lsn` on the log is known to be damaged."""
        self._end_steady()
        self.store = self.new_store()
        self.acceptor = None
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
        self.acceptor = Acceptor(self.safekeeper_id, self.instance, control, flush_lsn)
        self.acceptor.step(FeedbackChanged(self.replicas.feedback))
        self.acceptor.step(HolesChanged(bool(self.holes)))
        self.hinted_lsn = control.commit_lsn
        self.state, self.stopped_reason = healthy_state(control), ""
        self._publish()

    def lose_from(self, lsn: int) -> None:
        """The log is damaged at `lsn`, above the committed segments: its end is lost (rule 9).
        Raises StorageError."""
        with self.lock:
            if self.acceptor is None or lsn >= self.positions.flush_lsn:
                return
            flushed = replace(self.control, flush_lsn=self.positions.flush_lsn)
            self._control_file.persist(flushed)
            self._end_steady()
            self.store.abandon()
            self._close_connections(f"WAL is damaged at {format_lsn(lsn)}")
            self._load(lsn)

    def holes_changed(self) -> None:
        """Segments were found damaged, or were repaired."""
        with self.lock:
            if self.acceptor is not None:
                self._run([HolesChanged(bool(self.holes))])

    def _declare_damaged(self, reason: str) -> None:
        """Changes nothing on disk: the files are evidence, and may be the last copy."""
        log.error("timeline is damaged", timeline=str(self.control.timeline), reason=reason)
        self.stopped_reason, self.state = reason, TimelineState.DAMAGED

    def fail(self, error: Exception) -> None:
        if not isinstance(error, SafekeeperError | StorageError):
            error = SafekeeperError(f"unexpected {type(error).__name__}: {error}")
        self._stop(error)

    def _stop(self, error: SafekeeperError | StorageError) -> None:
        """From here on nothing is written, and only the state on disk is trusted."""
        self._end_steady()
        self.acceptor = None
        self.store.abandon()
        reason = str(error)
        self._may_resume = error.sqlstate == DISK_FULL
        if self._may_resume:
            reason += (
                "; the timeline resumes when the cause is removed and "
                f"{self.room.bytes_to_resume} bytes are free"
            )
        # Other threads read the state at any moment: the log and the whole reason come before it.
        log.error("timeline stopped", timeline=str(self.control.timeline), reason=reason)
        self.stopped_reason, self.state = reason, TimelineState.STOPPED
        self._close_connections(str(error))
        self.watchers.notify()

    @property
    def is_readable(self) -> bool:
        """Committed WAL can be read and removed: it takes part, or waits for space."""
        return self.state is TimelineState.ACTIVE or self._may_resume

    def _close_connections(self, reason: str) -> None:
        """Data that they sent and that was not read yet is discarded."""
        for connection in self._connections.values():
            connection.close(reason)
        self._connections.clear()

    def maybe_resume(self, free_bytes: int) -> None:
        """After a full disk or archive backlog: load again if there is enough space."""
        if self._may_resume and self.room.is_sufficient(free_bytes):
            with self.lock:
                self._may_resume = False
                self._load()

    def amend(self, change: Callable[[ControlState], ControlState], reason: str) -> None:
        """Load again with the durable state that `change` returns. Raises what `change` raises."""
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
            if self.acceptor is None and not self.sleep.is_asleep:
                return
            if self.state is TimelineState.LEFT:
                self.acceptor = None
            elif self.acceptor is not None:
                self._save_and_close()
            self.sleep.is_asleep = False
            self.stopped_reason, self.state = reason, TimelineState.STOPPED
            self._close_connections(reason)

    def finish(self, change: Callable[[ControlState], ControlState], reason: str) -> None:
        """Ends the log of this object. Durably saves the state that `change` returns; after that
        this object writes nothing, and the caller removes its files. Works in every state, because
        a damaged member that was replaced also leaves. Raises what `change` raises, and
        StorageError."""
        with self.lock:
            state = change(self.control)
            self._end_steady()
            try:
                self._control_file.finish(state)
            except StorageError as error:
                self._stop(error)
                raise
            self.acceptor, self._may_resume, self.sleep.is_asleep = None, False, False
            self.store.abandon()
            self.holes.finish()
            self.stopped_reason, self.state = reason, TimelineState.LEFT
            self._close_connections(reason)
            self.watchers.notify()

    def _save_and_close(self) -> None:
        """Saves everything and closes all files. Raises StorageError."""
        self._run([Disconnected(0)])
        self._control_file.persist_hints(self._hints)
        self.store.checked.save()
        self.slots.save()
        try:
            self.store.close()
        except StorageError as error:
            self._stop(error)
            raise
        self.acceptor = None

    def _start_asleep(self) -> None:
        """Asleep from the start on. The positions are the saved ones: they were saved every second
        while they moved, and at an orderly end."""
        control, flush_lsn = self.control, self.control.horizon_lsn
        self._positions = Positions(flush_lsn, flush_lsn, control.commit_lsn, control.truncate_lsn)
        self.state = healthy_state(control)
        self.sleep.begin_unloaded()

    @property
    def is_idle(self) -> bool:
        """It works, and no connection streams to it or from it. False for one that was left."""
        if self.acceptor is None or self.state is TimelineState.LEFT:
            return False
        return not (self._connections or self.replicas.all())

    def new_store(self) -> WalStore:
        """Not recovered: the content of the folder is not known yet."""
        control = self.control
        return WalStore(
            self.directory / "wal", control.server, control.tli_history, self.room.check
        )

    # ---- events

    def connect(self, connection: ProposerConnection) -> None:
        """Raises TimelineError if the timeline cannot take part."""
        with self.lock:
            self.sleep.end()
            self._check_usable()
            self._connections[connection.number] = connection
            self.last_proposers.newest = connection

    def disconnect(self, connection: ProposerConnection) -> None:
        """Flush what the connection wrote, and forget it."""
        with self.lock:
            self.sleep.used()
            self.last_proposers.disconnected(connection)
            if self._connections.pop(connection.number, None) is not None and self.acceptor:
                self._run([Disconnected(connection.number)])

    def receive(
        self, connection: int, messages: Iterable[ProposerMessage]
    ) -> list[SafekeeperMessage]:
        """Takes one batch: everything that has arrived, with one flush. Returns the answers, to be
        sent in order. Raises Refused, StorageError or TimelineError; then the connection ends.
        """
        with self.lock:
            self._check_usable()
            if connection not in self._connections:
                raise TimelineError("a newer connection took over", sqlstate="55000")
            events: list[Event] = [Received(connection, message) for message in messages]
            events.append(BatchEnded(connection))
            replies = self._run(events)
            if self.acceptor and self.acceptor.streaming == connection:
                self.last_proposers.leader = self._connections[connection]
            self._steady = self.steady_path_class.of(self, self.acceptor)
            return replies

    def receive_payloads(self, connection: int, payloads: Sequence[memoryview]) -> list[bytes]:
        """Like `receive`, with the bytes of the wire. Raises MessageError, too."""
        messages = [decode_proposer_message(payload) for payload in payloads]
        return [encode(reply) for reply in self.receive(connection, messages)]

    def receive_chained(self, connection: int, events: Sequence[ChainedWal]) -> list[bytes]:
        """Takes one batch that TakeWal ordered, with one flush. Raises like `receive`."""
        with self.lock:
            self._check_usable()
            return [encode(reply) for reply in self._run([*events, BatchEnded(connection)])]

    def steady_path(self, connection: int) -> SteadyPath | None:
        """The steady path for the connection's next Appends, if there is one."""
        steady = self._steady
        return steady if steady is not None and steady.connection == connection else None

    def _end_steady(self) -> None:
        """The caller holds the lock. WAL of the steady path is on disk and published."""
        steady = self._steady
        if steady is None:
            return
        steady.is_over = True
        self._positions, self._steady = steady.positions(), None  # in this order: never backwards
        if steady.has_taken and self.acceptor is not None:
            steady.hand_over(self.acceptor)
            self.store.end_lsn = steady.written_lsn

    def _check_usable(self) -> None:
        if self.acceptor is None:
            raise TimelineError(
                f"timeline {self.control.timeline} is {self.state.value}: {self.stopped_reason}",
                # A proposer counts what a stopped member has acknowledged, but not a damaged one.
                sqlstate="XX001" if self.state is TimelineState.DAMAGED else "57P03",
            )

    def _run(self, events: Iterable[Event]) -> list[SafekeeperMessage]:
        """Step and execute. The caller holds the lock.

        Any failure stops the timeline, because then the acceptor is ahead of the disk. The
        exception is a refusal: it is the acceptor's own answer.
        """
        assert self.acceptor is not None
        self._end_steady()
        replies: list[SafekeeperMessage] = []
        try:
            for event in events:
                for action in self.acceptor.step(event):
                    self._execute(action, replies)
        except Refused:
            raise
        except Exception as error:
            self.fail(error)
            raise
        self._publish()
        return replies

    def _execute(self, action: Action, replies: list[SafekeeperMessage]) -> None:
        # The three actions of every commit come first. They are tested by type: a class pattern
        # costs five times as much.
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
        acceptor = self.acceptor
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
            if self.acceptor is not None:
                self._run([FeedbackChanged(feedback)])

    # ---- off the append path

    def maintain_files(self) -> None:
        """Save the positions, and create the next segment in advance. Raises StorageError. The
        caller may ignore it: the append path meets the same disk and stops the timeline."""
        if self.acceptor is None or self.state is not TimelineState.ACTIVE:
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
        """Save the flushed position, the hints and the checksums of full segments, if they are new.
        Raises StorageError."""
        if self.acceptor is not None and self.state is TimelineState.ACTIVE:
            self.hinted_lsn = self.positions.commit_lsn
            self._control_file.persist_hints(self._hints)
            self.store.checked.save()

    def _hints(self) -> Hints:
        """The published positions, which are on disk. The acceptor may be inside a step."""
        positions, archive = self.positions, self.archive
        return Hints(
            flush_lsn=positions.flush_lsn,
            commit_lsn=positions.commit_lsn,
            truncate_lsn=positions.truncate_lsn,
            archived_lsn=archive.archived_lsn if archive is not None and archive.is_open else 0,
        )
