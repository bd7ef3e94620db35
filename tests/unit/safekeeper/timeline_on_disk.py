"""A timeline in a folder, and a proposer's connection to it without a network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from acceptor_steps import A, append, elected, history, vote_request
from new_timeline import INSTANCE, first_membership, new_control_state
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import AppendResponse, SafekeeperMessage, VoteResponse
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.safekeeper.control_file import CONTROL_FILE_NAME, ControlFile
from quorum_wal.safekeeper.control_state import encode_control_state
from quorum_wal.safekeeper.events import Received, TakeWal
from quorum_wal.safekeeper.flush_times import FlushTimes
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_hooks import TimelineHooks
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.storage import durable

HOOKS = TimelineHooks(wants_housekeeping=lambda: None, flush_times=FlushTimes())


def log_of(size_bytes: int, record_bytes: int = 30_000) -> WalLog:
    log = WalLog()
    fill(log, size_bytes, record_bytes)
    return log


def fill(log: WalLog, size_bytes: float, record_bytes: int = 30_000) -> None:
    """Extends the log to at least so much WAL."""
    while log.lsn < START_LSN + size_bytes:
        log.append(f"R{len(log.ends)}", record_bytes)


def segment_file(folder: Path, lsn: int) -> Path:
    return folder / "wal" / f"{1:08X}{0:08X}{lsn // WAL_SEG_SIZE:08X}"


def flip(folder: Path, lsn: int) -> None:
    """Flips a bit of that byte."""
    path = segment_file(folder, lsn)
    content = bytearray(path.read_bytes())
    content[lsn % WAL_SEG_SIZE] ^= 0x10
    path.write_bytes(content)


def create_timeline(folder: Path, safekeeper_id: int = 1, **control: Any) -> Timeline:
    """A new one, alone in its folder."""
    state = replace(new_control_state(first_membership(1, 2, 3)), **control)
    durable.make_directory(folder / "wal")
    durable.replace_file(folder / CONTROL_FILE_NAME, encode_control_state(state))
    return load_timeline(folder, safekeeper_id=safekeeper_id)


def load_timeline(
    folder: Path, hooks: TimelineHooks = HOOKS, *, is_awake: bool = True, safekeeper_id: int = 1
) -> Timeline:
    """Loads it like a start; without `is_awake`, like a start without the time for it."""
    control = ControlFile.read(folder)
    return Timeline(safekeeper_id, INSTANCE, folder, control, hooks, is_awake=is_awake)


@dataclass(eq=False)
class Pusher:
    """The proposer's end of a connection; sends the WAL of `log`."""

    timeline: Timeline
    number: int = 1
    node_id: NodeId = A
    log: WalLog = field(default_factory=WalLog)
    closed_reason: str = ""
    terms: TermHistory = field(default_factory=lambda: history((A, START_LSN)))
    silent_seconds: float = 0.0
    #: The order to take the WAL from another safekeeper.
    order: TakeWal | None = None

    def describe(self) -> dict[str, object]:
        return {"number": self.number, "address": "10.0.0.9:40000"}

    def close(self, reason: str) -> None:
        self.closed_reason = reason

    def take_wal(self, order: TakeWal) -> None:
        self.order = order

    def send(self, *events: Received) -> list[SafekeeperMessage]:
        return self.timeline.receive(self.number, [event.message for event in events])

    def vote(self) -> VoteResponse:
        (answer,) = self.send(vote_request(self.node_id, self.number))
        assert isinstance(answer, VoteResponse)
        return answer

    def lead(self, start_lsn: int = START_LSN) -> Pusher:
        """Connected, voted for and elected: the next append begins at `start_lsn`."""
        self.timeline.connect(self)
        self.vote()
        self.send(elected(self.node_id, start_lsn, self.terms, self.number))
        return self

    def push(self, commit_lsn: int = 0, **fields: Any) -> AppendResponse:
        """Sends all WAL of the log that was not sent yet."""
        begin_lsn = self.timeline.positions.written_lsn
        wal = self.log.read(begin_lsn, self.log.lsn)
        event = append(self.node_id, begin_lsn, len(wal), commit_lsn=commit_lsn, wal=wal, **fields)
        (answer,) = self.send(event)
        assert isinstance(answer, AppendResponse)
        return answer


def leading_pusher(folder: Path, safekeeper_id: int = 1, **control: Any) -> Pusher:
    return Pusher(create_timeline(folder, safekeeper_id, **control)).lead()


def filled_timeline(folder: Path, log: WalLog, *, commit_lsn: int = 0) -> None:
    """A timeline whose process ended orderly, with this log."""
    pusher = leading_pusher(folder)
    pusher.log = log
    pusher.push()
    if commit_lsn:
        pusher.push(commit_lsn=commit_lsn)
    pusher.timeline.close("the test goes on")


def state_of(timeline: Timeline) -> TimelineState:
    """The present state, regardless of earlier results."""
    return timeline.state


def raising(error: OSError) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail
