"""What goes into the proposer's core and what it orders: its table of contents. Pure values.

A peer is a safekeeper's place in the list of addresses (0, 1, ...); which member it is, its
greeting tells. The shell executes a list of actions in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, final

from msgspec import Struct

from consensus.messages import ProposerMessage, SafekeeperMessage

if TYPE_CHECKING:
    from walproposer.stream.steady_leader import SteadyLeader

# ---- events


@dataclass(frozen=True, slots=True)
class PeerConnected:
    peer: int


@dataclass(frozen=True, slots=True)
class PeerLost:
    """With `lost_data` it answers that it has no such timeline, or that what it has is damaged."""

    peer: int
    reason: str
    lost_data: bool = False


@final
class PeerMessage(Struct, frozen=True, gc=False):
    peer: int
    message: SafekeeperMessage


@dataclass(frozen=True, slots=True)
class UpstreamStarted:
    """The answer to StartUpstream; `flush_lsn` is where the primary's WAL ended just before."""

    flush_lsn: int


@final
class WalReceived(Struct, frozen=True, gc=False):
    """WAL of the primary, in order, as its walsender cut it."""

    begin_lsn: int
    wal: bytes


@dataclass(frozen=True, slots=True)
class TailRead:
    """The donor's answer to ReadTail, whole."""

    wal: bytes


@dataclass(frozen=True, slots=True)
class CatchUpWal:
    """WAL for `peer`, from the donor named in its StartCatchUp."""

    peer: int
    begin_lsn: int
    wal: bytes


@dataclass(frozen=True, slots=True)
class CatchUpLost:
    """The donor's stream for `peer` ended; `is_removed`: it has not got that WAL any more."""

    peer: int
    reason: str
    is_removed: bool = False


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passes; milliseconds of a monotonic clock."""

    now_ms: int


@dataclass(frozen=True, slots=True)
class SteadyEnded:
    """What was taken on the steady path since the event before this one."""

    steady: SteadyLeader


@dataclass(frozen=True, slots=True)
class Stopping:
    """The process ends, or has lost its primary: the last event of an incarnation."""


RareEvent = (
    PeerConnected
    | PeerLost
    | UpstreamStarted
    | TailRead
    | CatchUpWal
    | CatchUpLost
    | Tick
    | SteadyEnded
    | Stopping
)
Event = PeerMessage | WalReceived | RareEvent

# ---- actions


@final
class Send(Struct, frozen=True, gc=False):
    """One Append object may be sent to several peers: encode it once."""

    peer: int
    message: ProposerMessage


@dataclass(frozen=True, slots=True)
class ClosePeer:
    """Drop the connection and make a new one later; PeerLost is not expected back."""

    peer: int
    reason: str


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Read [begin_lsn, end_lsn) of the donor's log, to compare it with the primary's."""

    donor: int
    begin_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class StartUpstream:
    """Ask the primary where its WAL ends, and for the WAL from `begin_lsn` on if it has that."""

    begin_lsn: int


@final
class ReportFlushed(Struct, frozen=True, gc=False):
    """Tell the primary: a quorum has everything below `commit_lsn`. Commits return on this."""

    commit_lsn: int


@dataclass(frozen=True, slots=True)
class StartCatchUp:
    """Read the donor's log from `begin_lsn` on and bring it as CatchUpWal for `peer`."""

    peer: int
    donor: int
    begin_lsn: int


@dataclass(frozen=True, slots=True)
class StopCatchUp:
    peer: int


class Outcome(Enum):
    """How an incarnation ends."""

    FENCED = "fenced"  #: a greater NodeId was seen; somebody else is, or will be, the proposer
    REFUSED = "refused"  #: going on could lose acknowledged commits, or the parts do not fit
    RESTART = "restart"  #: nothing is wrong with the log; a new incarnation must try again
    COMPLETED = "completed"  #: without a primary: the log's tail is on a quorum


@dataclass(frozen=True, slots=True)
class Stop:
    """The last action of an incarnation; it never speaks again."""

    outcome: Outcome
    message: str
    hint: str = ""


Action = (
    Send | ClosePeer | ReadTail | StartUpstream | ReportFlushed | StartCatchUp | StopCatchUp | Stop
)
