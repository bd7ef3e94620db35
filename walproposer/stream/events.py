"""What goes into the proposer's core and what it orders: its table of contents. Pure values.

A peer is a place in the list of addresses (0, 1, ...), which begins with those of the candidacy
and may grow; who answers there, and whether he is a member, his greeting tells. The shell executes
a list of actions in its order.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, final

from msgspec import Struct

from consensus.join import TimelineOffer
from consensus.membership import Member, Membership
from consensus.messages import ProposerMessage, SafekeeperMessage

if TYPE_CHECKING:
    from walproposer.stream.steady_leader import SteadyLeader

# ---- events


class PeerConnected(Struct, frozen=True):
    peer: int


class PeerLost(Struct, frozen=True):
    """With `lost_data` it answers that it has no such timeline, or that what it has is damaged.

    Of a member that is a loss; of one outside the sets it is no news, and of one that is to be
    added it is what the core waits for (Join). So the shell tells it at every attempt to connect.
    """

    peer: int
    reason: str
    lost_data: bool = False


@final
class PeerMessage(Struct, frozen=True, gc=False):
    peer: int
    message: SafekeeperMessage


class UpstreamStarted(Struct, frozen=True):
    """The answer to StartUpstream; `flush_lsn` is where the primary's WAL ended just before."""

    flush_lsn: int


@final
class WalReceived(Struct, frozen=True, gc=False):
    """WAL of the primary, in order, as its walsender cut it."""

    begin_lsn: int
    wal: bytes


class TailRead(Struct, frozen=True):
    """The donor's answer to ReadTail, whole."""

    wal: bytes


class CatchUpWal(Struct, frozen=True):
    """WAL for `peer`, from the donor named in its StartCatchUp."""

    peer: int
    begin_lsn: int
    wal: bytes


class CatchUpLost(Struct, frozen=True):
    """The donor's stream for `peer` ended; `is_removed`: it has not got that WAL any more."""

    peer: int
    reason: str
    is_removed: bool = False


class Tick(Struct, frozen=True):
    """Time passes; milliseconds of a monotonic clock."""

    now_ms: int


class SteadyEnded(Struct, frozen=True):
    """What was taken on the steady path since the event before this one."""

    steady: SteadyLeader


class ChangeRequest(Struct, frozen=True):
    """The set wanted, and the generation of the membership that it was made for.

    Of those to be added id, instance and address must be known; of members, what is not known stays
    as it is. Equal ids with other addresses or sites change just those (rule 10).
    """

    generation: int
    members: tuple[Member, ...]

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(sorted(member.id for member in self.members))


class ChangeRequested(Struct, frozen=True):
    """May come at any time, before the election too: it waits for it.

    While another change is under way (`Proposer.change` is not finished, and wants another set)
    nothing happens: the shell has refused it. The same request again is the same change.
    """

    request: ChangeRequest


class ChangeCancelled(Struct, frozen=True):
    """Go back, if it is not too late: nothing happens once the change was left forward."""


class Joined(Struct, frozen=True):
    """The answer to Join: the timeline is there, or why not. `is_refused`: the safekeeper itself
    said no, or it is not the one that was wanted; else it is asked again later."""

    peer: int
    error: str = ""
    is_refused: bool = False


class Left(Struct, frozen=True):
    """The answer to Leave: it has left, or why not."""

    peer: int
    error: str = ""


class OutsiderNamed(Struct, frozen=True):
    """Somebody who is in no set answers at this address: connect to him, and tell him that he has
    left. Nothing happens while there is no leader, nor to one that is to be added."""

    host: str
    port: int


class RoundWanted(Struct, frozen=True):
    """Show that the term is live now, by a round that begins from now on. Nothing happens while
    there is no leader."""


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
    """Drop the connection and make a new one, later or `at_once`; PeerLost is not expected back."""

    peer: int
    reason: str
    at_once: bool = False


class OpenPeer(Struct, frozen=True):
    """Connect to this address, and again whenever the connection is lost, until ForgetPeer.

    The places of the candidacy's addresses are open from the start, without this. A place that was
    forgotten may be opened again; its address never changes.
    """

    peer: int
    host: str
    port: int


class ForgetPeer(Struct, frozen=True):
    """Drop its connection, if there is one, and make none; nothing of it may reach the core any
    more, PeerLost neither."""

    peer: int


class Join(Struct, frozen=True):
    """JOIN_TIMELINE at this address, answered by Joined, on a connection of its own.

    The one there must be `member`, by id and instance (IDENTIFY_SAFEKEEPER): else nothing is sent
    (A1), and the answer is a refusal. The shell chooses where the log begins, and offers
    `offer.beginning_at(start_lsn)`: the start of the segment of `limit_lsn`, which every member has
    flushed; an earlier one, where WAL is not archived and a member has it. Never a later one: a
    member that lags may have only this log to be caught up from.
    """

    peer: int
    member: Member
    limit_lsn: int
    offer: TimelineOffer


class Leave(Struct, frozen=True):
    """LEAVE_TIMELINE at this address, answered by Left, on a connection of its own.

    The one there must be this safekeeper, by id and instance: an address may be given to another
    one at any time, a learner perhaps, and that would delete its log.
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
    """Ask the primary where its WAL ends, and for the WAL from `begin_lsn` on if it has that."""

    begin_lsn: int


@final
class ReportFlushed(Struct, frozen=True, gc=False):
    """Tell the primary: a quorum has everything below `commit_lsn`. Commits return on this."""

    commit_lsn: int


class RoundAnswered(Struct, frozen=True):
    """When round `number` began, nobody had been elected after us."""

    number: int


class StartCatchUp(Struct, frozen=True):
    """Read the donor's log from `begin_lsn` on and bring it as CatchUpWal for `peer`."""

    peer: int
    donor: int
    begin_lsn: int


class StopCatchUp(Struct, frozen=True):
    peer: int


class Outcome(Enum):
    """How an incarnation ends."""

    FENCED = "fenced"  #: a greater NodeId was seen; somebody else is, or will be, the proposer
    REFUSED = "refused"  #: going on could lose acknowledged commits, or the parts do not fit
    RESTART = "restart"  #: nothing is wrong with the log; a new incarnation must try again
    COMPLETED = "completed"  #: without a primary: the log's tail is on a quorum


class Stop(Struct, frozen=True):
    """The last action of an incarnation; it never speaks again."""

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

# ---- what the shell shows


class ChangeState(Enum):
    """In order of execution; the last three are ends."""

    JOINING = "joining"  #: those to be added are given the timeline, or the election is awaited
    CATCHING_UP = "catching up"  #: learners: streamed to, counted for nothing
    ENTERED = "entered"  #: joint: a quorum of both sets confirms a commit
    LEAVING = "leaving"  #: the set that stays is written, and not in force yet
    TELLING = "telling"  #: in force; those outside are told to leave
    DONE = "done"
    REFUSED = "refused"  #: nothing was changed
    GONE_BACK = "gone back"  #: the members are who they were before


class ChangeView(Struct, frozen=True):
    """Of the change under way, or of the last one. `waits_for`: in words, "" at an end; `error`:
    why it was refused or went back, or what is in its way."""

    state: ChangeState
    wanted: tuple[int, ...]
    waits_for: str = ""
    error: str = ""

    @property
    def is_finished(self) -> bool:
        ends = (ChangeState.DONE, ChangeState.REFUSED, ChangeState.GONE_BACK)
        return self.state in ends
