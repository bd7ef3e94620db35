"""The events of the acceptor and the actions that it orders. Pure values.

The shell executes a list of actions in its order and stops the timeline at the first that fails.
The order is the safety argument (persist before reply).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from msgspec import Struct

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import HotStandbyFeedback, ProposerMessage, SafekeeperMessage
from quorum_wal.safekeeper.control_state import ControlState

# ---- events


@final
class Received(Struct, frozen=True, gc=False):
    """A message of a proposer, on the connection with this number (never used twice)."""

    connection: int
    message: ProposerMessage


@final
class BatchEnded(Struct, frozen=True, gc=False):
    """All messages that had arrived on the connection are stepped: flush and answer now."""

    connection: int


@final
class ChainedWal(Struct, frozen=True, gc=False):
    """WAL that TakeWal ordered for the connection, read for this ballot. The source had processed
    the Elected of this ballot. BatchEnded follows."""

    connection: int
    node_id: NodeId
    begin_lsn: int
    wal: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection ended; the WAL that it wrote must be flushed."""

    connection: int


@dataclass(frozen=True, slots=True)
class FeedbackChanged:
    """The feedback of this safekeeper's replicas to the primary; the next answers carry it."""

    feedback: HotStandbyFeedback


@dataclass(frozen=True, slots=True)
class HolesChanged:
    """Committed segments here are damaged, or were repaired."""

    has_holes: bool


@dataclass(frozen=True, slots=True)
class SteadyTaken:
    """The steady path ends. The positions are the greatest ones of its Appends; their WAL is
    written up to `end_lsn`, flushed and answered."""

    end_lsn: int
    record_end_lsn: int
    commit_lsn: int
    truncate_lsn: int


Event = (
    Received | BatchEnded | ChainedWal | Disconnected | FeedbackChanged | HolesChanged | SteadyTaken
)

# ---- actions


@final
class WriteWal(Struct, frozen=True, gc=False):
    """Hand the bytes to the OS at `begin_lsn`, the end of the last write."""

    begin_lsn: int
    wal: bytes | memoryview


@final
class FlushWal(Struct, frozen=True, gc=False):
    """Make everything written durable."""


@dataclass(frozen=True, slots=True)
class TruncateWal:
    """Durably remove everything at and above `end_lsn`; the next write begins there."""

    end_lsn: int


@dataclass(frozen=True, slots=True)
class PersistControl:
    """Make this version of the control state durable."""

    state: ControlState


@final
class Reply(Struct, frozen=True, gc=False):
    connection: int
    message: SafekeeperMessage


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer with an error and close the connection. No state was changed."""

    connection: int
    sqlstate: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TakeWal:
    """Read the flushed log of that safekeeper from `begin_lsn` on and deliver it as ChainedWal, as
    long as that log follows `node_id`. Ends with the connection; the connection is closed if
    reading fails."""

    connection: int
    node_id: NodeId
    host: str
    port: int
    begin_lsn: int


@dataclass(frozen=True, slots=True)
class CloseConnection:
    """The connection was replaced by a newer one."""

    connection: int
    reason: str


Action = (
    WriteWal | FlushWal | TruncateWal | PersistControl | Reply | Refuse | TakeWal | CloseConnection
)
