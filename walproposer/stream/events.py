"""The events and actions of the proposer's core. Pure values.

A peer is a place in the list of addresses (0, 1, ...), which begins with those of the candidacy and
may grow. The greeting tells which safekeeper answers there, and whether it is a member. The shell
executes a list of actions in order.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, final

from msgspec import Struct

from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.consensus.messages import ProposerMessage, SafekeeperMessage

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.steady_leader import SteadyLeader

# ---- events


class PeerConnected(Struct, frozen=True):
    peer: int


class PeerLost(Struct, frozen=True):
    """With `lost_data` it reported that it has no such timeline, or a damaged one.

    For a member that is a loss. For a safekeeper outside the sets it is expected, and for one to be
    added the core waits for it (Join). So the shell reports it at every attempt to connect.
    """

    peer: int
    reason: str
    lost_data: bool = False


@final
class PeerMessage(Struct, frozen=True, gc=False):
    peer: int
    message: SafekeeperMessage


class UpstreamStarted(Struct, frozen=True):
    """The answer to StartUpstream; `flush_lsn` is the end of the primary's WAL just before."""

    flush_lsn: int


@final
class WalReceived(Struct, frozen=True, gc=False):
    """WAL of the primary, in order, in the pieces of its walsender."""

    begin_lsn: int
    wal: bytes


class TailRead(Struct, frozen=True):
    """The donor's complete answer to ReadTail."""

    wal: bytes


class CatchUpWal(Struct, frozen=True):
    """WAL for `peer`, from the donor of its StartCatchUp."""

    peer: int
    begin_lsn: int
    wal: bytes


class CatchUpLost(Struct, frozen=True):
    """The donor's stream for `peer` ended; `is_removed`: the donor no longer has that WAL."""

    peer: int
    reason: str
    is_removed: bool = False


class Tick(Struct, frozen=True):
    """Milliseconds of a monotonic clock."""

    now_ms: int


class SteadyEnded(Struct, frozen=True):
    """The result of the steady path since the previous event."""

    steady: SteadyLeader


class ChangeRequest(Struct, frozen=True):
    """The wanted set, and the generation of the membership that the request was made for.

    Members to be added need id, instance and address. For present members, unknown values stay as
    they are. Equal ids with other addresses or sites change only those (rule 10).
    """

    generation: int
    members: tuple[Member, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted(member.id for member in self.members))


class ChangeRequested(Struct, frozen=True):
    """May come at any time; before the election it waits for it.

    While another change is in progress (`Proposer.change` is not finished, and wants another set)
    it does nothing: the shell has refused it. A repeated request refers to the same change.
    """

    request: ChangeRequest


class ChangeCancelled(Struct, frozen=True):
    """Go back to the old set, if it is not too late: once the change has left the joint set
    forward, this does nothing."""


class Joined(Struct, frozen=True):
    """The answer to Join: the timeline exists there, or the error. `is_refused`: the safekeeper
    refused, or it is not the wanted one; otherwise it is asked again later."""

    peer: int
    error: str = ""
    is_refused: bool = False


class Left(Struct, frozen=True):
    """The answer to Leave: it has left, or the error."""

    peer: int
    error: str = ""


class OutsiderNamed(Struct, frozen=True):
    """A safekeeper that is in no set answers at this address: connect to it, and order it to leave.
    Does nothing while there is no leader, or if the safekeeper is to be added."""

    host: str
    port: int


class RoundWanted(Struct, frozen=True):
    """Prove that the term leads now, by a round that begins from now on. Does nothing while there
    is no leader."""


class Stopping(Struct, frozen=True):
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
    | ChangeRequested
    | ChangeCancelled
    | Joined
    | Left
    | OutsiderNamed
    | RoundWanted
    | Stopping
)
Event = PeerMessage | WalReceived | RareEvent

# ---- actions


@final
class Send(Struct, frozen=True, gc=False):
    """One Append object may be sent to several peers: encode it once."""

    peer: int
    message: ProposerMessage


class ClosePeer(Struct, frozen=True):
    """Drop the connection and make a new one, later or `at_once`. The shell must not answer with
    PeerLost."""

    peer: int
    reason: str
    at_once: bool = False


class OpenPeer(Struct, frozen=True):
    """Connect to this address, and reconnect whenever the connection is lost, until ForgetPeer.

    The places of the candidacy's addresses are open from the start, without this. A forgotten place
    may be opened again. Its address never changes.
    """

    peer: int
    host: str
    port: int


class ForgetPeer(Struct, frozen=True):
    """Drop its connection, if there is one, and make none. Nothing of it may reach the core any
    more, not even PeerLost."""

    peer: int


class Join(Struct, frozen=True):
    """JOIN_TIMELINE at this address, answered by Joined, on a separate connection.

    The safekeeper there must be `member`, by id and instance (IDENTIFY_SAFEKEEPER). Otherwise
    nothing is sent (A1), and the answer is a refusal. The shell chooses where the log begins, and
    offers `offer.beginning_at(start_lsn)`: the start of the segment of `limit_lsn`, which every
    member has flushed; or an earlier position, if WAL is not archived and a member has it. Never a
    later one: a member that lags may have only this log to catch up from.
    """

    peer: int
    member: Member
    limit_lsn: int
    offer: TimelineOffer


class Leave(Struct, frozen=True):
    """LEAVE_TIMELINE at this address, answered by Left, on a separate connection.

    The safekeeper there must be this one, by id and instance. An address may be given to another
    one at any time, perhaps a learner, whose log the command would delete.
    """

    peer: int
    safekeeper_id: int
    instance: bytes
    membership: Membership


class ReadTail(Struct, frozen=True):
    """Read [begin_lsn, end_lsn) of the donor's log, to compare it with the primary's."""

    donor: int
    begin_lsn: int
    end_lsn: int


class StartUpstream(Struct, frozen=True):
    """Ask the primary for the end of its WAL, and for the WAL from `begin_lsn` on if it has
    that."""

    begin_lsn: int


@final
class ReportFlushed(Struct, frozen=True, gc=False):
    """Report to the primary: a quorum has everything below `commit_lsn`. Commits return on this."""

    commit_lsn: int


class RoundAnswered(Struct, frozen=True):
    """When round `number` began, no other proposer had been elected after us."""

    number: int


class StartCatchUp(Struct, frozen=True):
    """Read the donor's log from `begin_lsn` on, as CatchUpWal for `peer`."""

    peer: int
    donor: int
    begin_lsn: int


class StopCatchUp(Struct, frozen=True):
    peer: int


class Outcome(Enum):
    """How an incarnation ends."""

    FENCED = "fenced"  #: a greater NodeId was seen; another proposer leads, or will
    REFUSED = "refused"  #: continuing could lose acknowledged commits, or the parts do not match
    RESTART = "restart"  #: the log is intact; a new incarnation must try again
    COMPLETED = "completed"  #: without a primary: the log's tail is on a quorum


class Stop(Struct, frozen=True):
    """The last action of an incarnation. It does nothing afterwards."""

    outcome: Outcome
    message: str
    hint: str = ""


Action = (
    Send
    | ClosePeer
    | OpenPeer
    | ForgetPeer
    | Join
    | Leave
    | ReadTail
    | StartUpstream
    | ReportFlushed
    | RoundAnswered
    | StartCatchUp
    | StopCatchUp
    | Stop
)

# ---- for the status


class ChangeState(Enum):
    """In order of execution; the last three are ends."""

    JOINING = "joining"  #: safekeepers to be added get the timeline, or the election is awaited
    CATCHING_UP = "catching up"  #: learners: streamed to, not counted
    ENTERED = "entered"  #: joint: a quorum of both sets confirms a commit
    LEAVING = "leaving"  #: the remaining set is written, and not in force yet
    TELLING = "telling"  #: in force; safekeepers outside are ordered to leave
    DONE = "done"
    REFUSED = "refused"  #: nothing was changed
    GONE_BACK = "gone back"  #: the members are the same as before


class ChangeView(Struct, frozen=True):
    """The change in progress, or the last one. `waits_for`: what it waits for, "" at an end.
    `error`: why it was refused or went back, or what prevents it."""

    state: ChangeState
    wanted: tuple[int, ...]
    waits_for: str = ""
    error: str = ""

    @property
    def is_finished(self) -> bool:
        ends = (ChangeState.DONE, ChangeState.REFUSED, ChangeState.GONE_BACK)
        return self.state in ends
