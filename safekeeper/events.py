"""What goes into the acceptor and what it orders: its table of contents. Pure values.

The shell executes a list of actions in its order and stops the timeline at the first one that
fails; the order is the safety argument (persist before reply).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from msgspec import Struct

from consensus.ids import NodeId
from consensus.messages import HotStandbyFeedback, ProposerMessage, SafekeeperMessage
from safekeeper.control_state import ControlState

# ---- events


@final
class Received(Struct, frozen=True, gc=False):
    """A message of a proposer, on the connection with this number (never used twice)."""

    connection: int
    message: ProposerMessage


@final
class BatchEnded(Struct, frozen=True, gc=False):
    """All that had arrived on the connection has been stepped: time to flush and to answer."""

    connection: int


@final
class ChainedWal(Struct, frozen=True, gc=False):
    """What TakeWal ordered for the connection, read for this ballot from the log of another one
    that had processed its Elected; BatchEnded follows."""

    connection: int
    node_id: NodeId
    begin_lsn: int
    wal: bytes | memoryview


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The connection is gone; what it wrote must not stay unflushed."""

    connection: int


@dataclass(frozen=True, slots=True)
class FeedbackChanged:
    """What the replicas of this safekeeper need the primary to keep; the next answers carry it."""

    feedback: HotStandbyFeedback


@dataclass(frozen=True, slots=True)
class HolesChanged:
    """Committed segments here are damaged, or they are mended."""

    has_holes: bool


@dataclass(frozen=True, slots=True)
class SteadyTaken:
    """The steady path ends: by the greatest positions that its Appends named, all of their WAL is
    written up to `end_lsn`, flushed and answered for."""

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
    """Hand the bytes to the OS at `begin_lsn`, which is where the last write ended."""

    begin_lsn: int
    wal: bytes | memoryview


@final
class FlushWal(Struct, frozen=True, gc=False):
    """Make everything written durable."""


@dataclass(frozen=True, slots=True)
class TruncateWal:
    """Durably forget everything at and above `end_lsn`; the next write begins there."""

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
    """Answer with an error and close the connection; nothing else happened."""

    connection: int
    sqlstate: str
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class TakeWal:
    """Read the log of the safekeeper there from `begin_lsn` on, as far as it is flushed, for as
    long as that one follows `node_id` and nobody else, and bring it as ChainedWal. Until the
    connection ends; it is ended when that cannot be done any more."""

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
