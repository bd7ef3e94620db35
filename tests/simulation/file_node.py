"""`FileNode`: a safekeeper with its files: the real `Timeline`, on a disk that loses power.

    Node      Acceptor                                                       on a `Disk` in memory
    FileNode  bytes -> codec -> Timeline(Acceptor, ControlFile, WalStore)    on a `DroppingDisk`

The power fails before any call that reaches the disk, also during recovery. Everything that is not
synced then, including names, is lost completely, in part, or not at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quorum_wal.consensus.codec import (
    decode_proposer_message,
    decode_safekeeper_message,
    encode,
)
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import Append, ProposerMessage, SafekeeperMessage
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME, ControlFile
from quorum_wal.safekeeper.control_state import ControlState, encode_control_state
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.events import (
    Action,
    BatchEnded,
    ChainedWal,
    Disconnected,
    Event,
    Received,
    Reply,
    TakeWal,
    TruncateWal,
)
from quorum_wal.safekeeper.flush_times import FlushTimes
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.retention import RetentionPolicy
from quorum_wal.safekeeper.steady_path import SteadyPath
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_hooks import TimelineHooks
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.wal_removal import horizon_of, remove_old_wal
from quorum_wal.storage import durable
from quorum_wal.storage.errors import StorageError
from tests.dropping_disk import DroppingDisk, RandomLoss
from tests.new_timeline import new_control_state
from tests.steady_batch import receive_batch

from .broken_law import check
from .file_disk import FileDisk
from .log import WAL_SEG_SIZE
from .node import HINTS_US, RESTART_US, SERVER, Node
from .node_state import NodeState

if TYPE_CHECKING:
    from .file_world import FileWorld

HOOKS = TimelineHooks(wants_housekeeping=lambda: None, flush_times=FlushTimes())
#: Only WAL that is needed is kept.
RETENTION = RetentionPolicy(wal_keep_bytes=0, disk_reserve_bytes=0)


class PowerFailed(BaseException):
    """Not an Exception, so that no code in the process can handle it."""


class NodeTimeline(Timeline):
    """Reports to the invariants what it is about to do."""

    steady_path_class = SteadyPath

    def __init__(self, node: FileNode, folder: Path) -> None:
        self._node = node
        self.executed: list[Action] = []
        super().__init__(
            node.number, node.instance, folder, ControlFile.read(folder), HOOKS, RETENTION
        )

    def receive_batch(self, connection: int, payloads: Sequence[bytes]) -> list[bytes]:
        if not self._node.takes_steady_path:
            self._end_steady()
        answers, is_steady = receive_batch(self, connection, payloads)
        steady, acceptor = self._steady, self.acceptor
        if is_steady and steady is not None and acceptor is not None:
            # It continues, and the result is checked after each step.
            steady.hand_over(acceptor)
            self.store.end_lsn = steady.written_lsn
            self._node.world.count("batches by the steady path")
        return answers

    def _execute(self, action: Action, replies: list[SafekeeperMessage]) -> None:
        if isinstance(action, TruncateWal):
            self._node.truncating(action.end_lsn)
        self.executed.append(action)
        super()._execute(action, replies)
        if isinstance(action, TruncateWal):
            self._node.truncated(action.end_lsn)


class NodeConnection:
    """A proposer's connection, as the timeline knows it."""

    def __init__(self, node: FileNode, number: int) -> None:
        self.node = node
        self.number = number
        self.silent_seconds = 0.0

    def describe(self) -> dict[str, object]:
        return {}

    def close(self, reason: str) -> None:
        """The order and its effect are separate: earlier messages may still be read."""
        world = self.node.world
        world.clock.call_later(world.random.choice((0, 500, 5000)), self.node.close, self.number)

    def take_wal(self, order: TakeWal) -> None:
        self.node.take_wal(order)


class FileNode(Node):
    """`acceptor` is the timeline's, for checks; `actions_left` counts calls to the disk."""

    def __init__(
        self, world: FileWorld, number: int, membership: Membership, machine: DroppingDisk
    ) -> None:
        super().__init__(world, number, membership)
        self.takes_steady_path = world.takes_steady_path
        folder = Path(machine.root) / self.name
        self.files = FileDisk(machine, folder)
        self.disk = self.files  # type: ignore[assignment]
        self._connections: dict[int, NodeConnection] = {}
        self._inbox: dict[int, list[ProposerMessage]] = {}
        durable.make_directory(folder / "wal")
        state = new_control_state(membership, SERVER)
        durable.replace_file(folder / CONTROL_FILE_NAME, encode_control_state(state))
        self._load()

    def _load(self) -> None:
        """As at the start of the process. Raises PowerFailed."""
        self.timeline = NodeTimeline(self, self.files.folder)
        self.acceptor = self.timeline.acceptor
        if self.acceptor is not None:
            self.files.started(self.timeline.store)

    def before_call(self, call: str, path: str) -> None:
        """Called before a call reaches the disk."""
        if self.actions_left is not None:
            if self.actions_left <= 0:
                raise PowerFailed
            self.actions_left -= 1
        self.files.maybe_fail(call, path)

    # ---- events

    def step(self, event: Event) -> None:
        """All Appends that have arrived are one batch, as in the process."""
        if self.acceptor is None:
            return
        self.world.steps += 1
        match event:
            case Received(number, message):
                self._received(number, decode_proposer_message(encode(message)), event)
            case BatchEnded(number):
                self._drain(number, event)
            case ChainedWal(number):
                self._chained(number, event)
            case Disconnected(number):
                self._inbox.pop(number, None)
                connection = self._connections.pop(number, None)
                if connection is not None:
                    self._try(event, lambda: self.timeline.disconnect(connection))

    def _received(self, number: int, message: ProposerMessage, event: Event) -> None:
        if number not in self._connections:
            connection = self._connections[number] = NodeConnection(self, number)
            self.timeline.connect(connection)
        if isinstance(message, Append):
            self._inbox.setdefault(number, []).append(message)
            return
        self._drain(number, event)
        if number in self._connections:
            self._receive(number, [message], event)

    def _drain(self, number: int, event: Event) -> None:
        messages = self._inbox.pop(number, None)
        if messages:
            self._receive(number, messages, event)

    def _receive(self, number: int, messages: list[ProposerMessage], event: Event) -> None:
        payloads = [memoryview(encode(message)) for message in messages]
        replies: list[bytes] = []
        self._try(event, lambda: replies.extend(self.timeline.receive_batch(number, payloads)))
        self._send(number, replies)

    def _send(self, number: int, replies: list[bytes]) -> None:
        for reply in replies:
            answer = decode_safekeeper_message(reply)
            self.world.invariants.replied(self, Reply(number, answer))
            self.world.network.send_to_proposer(number, answer)

    def _chained(self, number: int, event: ChainedWal) -> None:
        """The batch and its end are one step."""
        replies: list[bytes] = []
        self._try(event, lambda: replies.extend(self.timeline.receive_chained(number, [event])))
        self._send(number, replies)

    def _try(self, event: Event, act: object) -> None:
        assert callable(act)
        world, timeline = self.world, self.timeline
        timeline.executed.clear()
        try:
            act()
        except PowerFailed:
            world.trace(self.name, event, timeline.executed, "power fails")
            world.count("crashes between calls to the disk")
            self.lose_power()
            return
        except StorageError as error:
            world.trace(self.name, event, timeline.executed, f"{error}: stops")
            world.count("disk: an error that stops the timeline")
            self.stop()
            if "sync" in str(error):  # the kernel may drop pages that it could not write
                self._drop_unsynced()
            return
        except SafekeeperError as error:
            world.trace(self.name, event, timeline.executed, str(error))
            self.close(getattr(event, "connection"))  # noqa: B009
            return
        world.trace(self.name, event, timeline.executed, "")
        world.invariants.node_stepped(self, event, timeline.executed)

    def truncating(self, end_lsn: int) -> None:
        self.world.invariants.truncating(self, end_lsn)
        if self.fails_at_truncation:
            self.fails_at_truncation = False
            self.actions_left = self.world.random.randrange(8)
            self.world.count("truncations interrupted")

    def read_checked(self, begin_lsn: int, end_lsn: int) -> bytes:
        """WAL that it sends, checked by the checksums. Raises SafekeeperError."""
        local_start_lsn = self.timeline.control.local_start_lsn
        if begin_lsn < local_start_lsn:
            raise SafekeeperError(f"WAL below {local_start_lsn:X} was removed")
        wal = bytearray()
        while begin_lsn + len(wal) < end_lsn:
            lsn = begin_lsn + len(wal)
            part = read_wal(self.timeline, lsn, min(end_lsn - lsn, WAL_SEG_SIZE))
            if not part:
                break  # it was truncated
            wal += part
        return bytes(wal)

    def scrub(self) -> None:
        """No byte is damaged while it runs."""

    def truncated(self, end_lsn: int) -> None:
        """No byte follows the log's end, and a power loss cannot restore one."""
        self.files.damaged_lsn = None
        rest = self.files.read(end_lsn, end_lsn + 2 * WAL_SEG_SIZE)
        check("Truncate", rest == bytes(len(rest)), self.name, "has bytes behind its log")
        check("Truncate", self.files.is_synced, self.name, "may get back what it truncated")

    # ---- ends and beginnings

    def stop(self) -> None:
        if self.acceptor is None:
            return
        self.files.stopped()
        self.timeline.store.abandon()
        self._connections.clear()
        self._inbox.clear()
        super().stop()

    def lose_power(self) -> None:
        if self.acceptor is not None:
            self.stop()
            self._drop_unsynced()

    def _drop_unsynced(self) -> None:
        self.files.lose_power(RandomLoss(self.world.random.getrandbits(32)))
        self.world.count("losses of what was not synced")

    def restart(self) -> None:
        """The power may fail again during it."""
        if self.state is not NodeState.DOWN:
            return
        world, random = self.world, self.world.random
        expected_lsn = world.invariants.expected_end(self)
        if self.files.written_lsn > expected_lsn:
            world.count("torn tails")
        if not world.is_calm and random.random() < 0.1:
            self.actions_left = random.randrange(12)
        before = self.disk.control
        try:
            self._load()
        except PowerFailed:
            world.count("crashes in a recovery")
            self.actions_left = None
            self._drop_unsynced()
            world.clock.call_later(RESTART_US, self.restart)
            return
        self.actions_left = None
        if self.timeline.state is TimelineState.STOPPED:  # a disk that fails again
            world.clock.call_later(RESTART_US, self.restart)
        else:
            self._loaded(before, expected_lsn)

    def _loaded(self, before: ControlState, expected_lsn: int) -> None:
        world, timeline, files = self.world, self.timeline, self.files
        if timeline.state is TimelineState.DAMAGED:
            self.state, files.is_gone = NodeState.DAMAGED, True
            world.count("damaged logs without an end")
            return
        end_lsn = timeline.positions.flush_lsn
        world.trace(self.name, "Restart", [], f"end of the log {end_lsn:X}")
        files.damaged_lsn = end_lsn if end_lsn < before.horizon_lsn else None
        world.invariants.node_recovered(self, before, expected_lsn, end_lsn)
        check("Durable", end_lsn <= files.flushed_lsn, self.name, "believes its page cache")
        if files.damaged_lsn is None:
            self.truncated(end_lsn)
        else:
            world.count("damaged logs")
        self.state = NodeState.UP
        world.invariants.node_started(self)

    def _save_hints(self) -> None:
        """Housekeeping: positions are saved, a spare is created, old segments are removed."""
        if self.acceptor is not None:
            self._try(Disconnected(0), self._run_housekeeping)
            if self.acceptor is not None:
                self.world.invariants.node_started(self, is_new=False)
        self.world.clock.call_later(HINTS_US, self._save_hints)

    def _run_housekeeping(self) -> None:
        timeline = self.timeline
        timeline.maintain_files()
        lsn = horizon_of(timeline).lsn
        if lsn > timeline.control.local_start_lsn:
            self.files.keep_removed(lsn)
            self.world.count("removals of segments")
        remove_old_wal(timeline)
