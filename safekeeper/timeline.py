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
from pgwal.end_of_wal import EndOfWal
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
    TruncateWal,
    WriteWal,
)
from safekeeper.proposer_connection import ProposerConnection
from safekeeper.replicas import Replicas
from safekeeper.retention import DEFAULT_RETENTION, RetentionPolicy
from safekeeper.slots import Slots
from safekeeper.steady_path import HINTS_BYTES_MAX, SteadyPath
from safekeeper.timeline_hooks import TimelineHooks
from safekeeper.timeline_state import Positions, TimelineState
from safekeeper.wal_store import WalStore
from safekeeper.watchers import Watchers
from storage import durable
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
        directory: Path,
        control: ControlFile,
        hooks: TimelineHooks,
        retention: RetentionPolicy = DEFAULT_RETENTION,
        archive: ArchiveSettings | None = None,
    ) -> None:
        self.safekeeper_id = safekeeper_id
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
        #: The newest one, open or not: whom to ask when nobody streams.
        self.last_proposer: ProposerConnection | None = None
        self.hinted_lsn = 0
        self.retention = retention
        #: How far the archive is; None without one.
        self.archive = ArchiveProgress(archive, control.state.local_start_lsn) if archive else None
        #: Reads WAL that has left the disk, from (lsn, length); None without an archive.
        self.read_archived: Callable[[int, int], bytes] | None = None
        self.slots = Slots(directory)
        self.holes = Holes(directory)
        self.replicas = Replicas(self._set_feedback)
        self._acceptor: Acceptor | None = None
        self._steady: SteadyPath | None = None
        self._load()

    # ---- start and stop

    @property
    def control(self) -> ControlState:
        """What is on disk."""
        return self._control_file.state

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
        """Rule 7: find the end of the log by decoding, sync what was read, zero what lies beyond.

        Decoding begins with the segment of the last known commit_lsn, so that the newest part is
        verified although everything up to there must be good. An end below what was flushed is
        damage: it is remembered before anybody can ask for a vote, and nothing is zeroed. From
        `valid_lsn` on the log is known to be damaged.
        """
        self._end_steady()
        control = self.control
        self.store = WalStore(
            self.directory / "wal", control.server, control.tli_history, self._check_room
        )
        self._acceptor = None
        seg_size = control.server.wal_seg_size
        known_lsn = max(control.commit_lsn, control.local_start_lsn)
        start_lsn = known_lsn - known_lsn % seg_size
        begun = time.monotonic()
        try:
            self.holes.find(self.store, control.local_start_lsn, start_lsn)
            end = self.store.recover(
                start_lsn, control.horizon_lsn, control.local_start_lsn, valid_lsn
            )
            self._remember_loss(end)
        except StorageError as error:
            self._stop(error)
            return
        control = self.control
        if end.end_lsn <= control.local_start_lsn != control.timeline_start_lsn:
            self._declare_damaged(f"there is no valid WAL: {end.reason}")
            return
        self._acceptor = Acceptor(self.safekeeper_id, control, int(end.end_lsn))
        self._acceptor.step(FeedbackChanged(self.replicas.feedback))
        self._acceptor.step(HolesChanged(bool(self.holes)))
        self.hinted_lsn = control.commit_lsn
        self.state = TimelineState.ACTIVE if control.active else TimelineState.CREATING
        self.stopped_reason = ""
        self._publish()
        log.info(
            "timeline loaded",
            timeline=str(control.timeline),
            flush_lsn=format_lsn(end.end_lsn),
            end_of_wal=end.reason,
            seconds=round(time.monotonic() - begun, 3),
        )

    def _remember_loss(self, end: EndOfWal) -> None:
        """Durably, if the log ends below what was flushed. Raises StorageError."""
        control = self.control
        found = control.found_to_end(int(end.end_lsn))
        if found != control:
            self._control_file.persist(found)
            log.error(
                "WAL is damaged",
                timeline=str(control.timeline),
                flushed_lsn=format_lsn(control.horizon_lsn),
                end_lsn=format_lsn(end.end_lsn),
                reason=end.reason,
            )

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
                f"; it comes back by itself when that is mended and {self.room_bytes} bytes are "
                "free"
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

    @property
    def room_bytes(self) -> int:
        """Free space that a stopped timeline begins again with: for the segment that is open, the
        next one and the spare one."""
        return 3 * self.control.server.wal_seg_size + self.retention.disk_reserve_bytes

    def _close_connections(self, reason: str) -> None:
        """What they had sent and nobody has read yet is never looked at."""
        for connection in self._connections.values():
            connection.close(reason)
        self._connections.clear()

    def _check_room(self) -> None:
        """Before the log grows by a segment. Raises StorageError."""
        archive, reserve_bytes = self.archive, self.retention.disk_reserve_bytes
        commit_lsn = self.positions.commit_lsn
        # What is not committed cannot be archived yet, and needs room of its own: a member that is
        # behind must be able to follow up to the end of the log, or nothing would be committed.
        if archive is not None and (
            archive.is_backlog_full(commit_lsn)
            or archive.is_limit_reached(self.store.end_lsn - commit_lsn)
        ):
            raise StorageError(
                f"archive backlog has reached its limit of {archive.settings.backlog_bytes_max} "
                f"bytes: nothing above {format_lsn(archive.archived_lsn)} is archived",
                hint=archive.error or "Is the store too slow? --archive-backlog-max is the limit.",
                sqlstate=DISK_FULL,
            )
        free_bytes = durable.free_bytes(self.directory)
        if free_bytes < reserve_bytes:
            raise StorageError(
                f'could not create a segment in "{self.directory}": No space left on device but '
                f"{free_bytes} of the {reserve_bytes} bytes reserved for control files",
                hint="Free some space; the timeline comes back by itself.",
                sqlstate=DISK_FULL,
            )

    def warn_of_backlog(self) -> None:
        """Once each time that the archive's backlog has become high."""
        if self.archive is not None:
            self.archive.warn_of_backlog(str(self.control.timeline), self.positions.commit_lsn)

    def maybe_heal(self, free_bytes: int) -> None:
        """After a full disk or archive backlog: load again once there is room."""
        if not self._heals or free_bytes < self.room_bytes:
            return
        if self.archive is not None and self.archive.is_backlog_full(self.positions.commit_lsn):
            return
        with self.lock:
            self._heals = False
            self._load()

    def activate(self) -> None:
        """The second step of a creation: every member has the timeline, so it may vote."""
        with self.lock:
            self._check_usable()
            if not self.control.active:
                self._control_file.persist(replace(self.control, active=True))
                self._load()
                self.hooks.wants_housekeeping()

    def close(self, reason: str) -> None:
        """An orderly end: flush, and save the hints. Raises StorageError."""
        with self.lock:
            if self._acceptor is None:
                return
            self._run([Disconnected(0)])
            self._control_file.persist_hints(self._hints)
            self.slots.save()
            self.store.close()
            self._acceptor = None
            self.state = TimelineState.STOPPED
            self.stopped_reason = reason
            self._close_connections(reason)

    # ---- events

    def connect(self, connection: ProposerConnection) -> None:
        """Raises TimelineError when the timeline cannot take part."""
        with self.lock:
            self._check_usable()
            self._connections[connection.number] = connection
            self.last_proposer = connection

    def disconnect(self, connection: ProposerConnection) -> None:
        """Flush what the connection wrote, and forget it."""
        with self.lock:
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
            self._steady = self.steady_path_class.of(self, self._acceptor)
            return replies

    def receive_payloads(self, connection: int, payloads: Sequence[memoryview]) -> list[bytes]:
        """The same on the wire's bytes. Raises MessageError, too."""
        messages = [decode_proposer_message(payload) for payload in payloads]
        return [encode(reply) for reply in self.receive(connection, messages)]

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
        if self.state in (TimelineState.STOPPED, TimelineState.DAMAGED):
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

    def stop_replicas(self) -> None:
        """Every stream to a replica ends when it has sent what is committed."""
        self.replicas.stopping = True
        self.watchers.notify()

    # ---- off the append path

    def keep_house(self) -> None:
        """Save the positions, and have the next segment ready. Raises StorageError, which harms
        nothing here: the append path meets the same disk and stops the timeline itself."""
        if self._acceptor is None or self.state is not TimelineState.ACTIVE:
            return
        self.save_positions()
        if self.positions.written_lsn > self.control.local_start_lsn or self._connections:
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
