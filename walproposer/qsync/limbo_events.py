"""What goes into the core of the limbo and what it orders: its table of contents. Pure values.

Times are milliseconds since the Unix epoch, on a clock that does not jump (the wall clock once,
then a monotonic one). `waiter` numbers a connection of the coordinator's port: one connection has
one question at a time. Events that speak of a primary carry the NodeId of the incarnation they come
from, so that the core can ignore what arrives late from an older one. The shell executes a list of
actions in its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from consensus.ids import NodeId
from consensus.tli_history import last_switch_lsn
from pgwal.history import TimelineHistory
from pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from qsync.gid import Gid

NEVER_LSN = (1 << 64) - 1  # `Limbo.wake_lsn` while nothing waits: commit_lsn never reaches it

# ---- events


@dataclass(frozen=True, slots=True)
class Led:
    """An incarnation leads. `history` is that of the primary's timeline, read from the primary, and
    `server_start_us` tells its server from others on a timeline of that number (`gid.py`).

    Nothing that was known of prepared transactions is: the primary may be another one.
    """

    node_id: NodeId
    term_start_lsn: int
    history: TimelineHistory
    server_start_us: int

    @property
    def server(self) -> tuple[int, int]:
        """Timeline and start: as it is in a gid, and in a BARRIER."""
        return self.history.tli, self.server_start_us

    @property
    def decides_lsn(self) -> int:
        """From which commit_lsn on there are verdicts: what any older term has told is below, and
        so is the first byte of the primary's timeline, which makes that the only one."""
        return max(self.term_start_lsn, last_switch_lsn(self.history) + 1)


@dataclass(frozen=True, slots=True)
class Fenced:
    """The incarnation that led does so no more, or the process ends. The first to be told."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitAdvanced:
    """A quorum has everything below `commit_lsn`, in the term of `node_id`."""

    node_id: NodeId
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class QuorumChanged:
    """Whether a quorum answers at present. Taken for good when an incarnation begins to lead."""

    ok: bool


@dataclass(frozen=True, slots=True)
class RoundAnswered:
    """A quorum has answered messages of the term that were all sent in round `round_number` or
    later: when that round began, no greater term had been promised by a quorum."""

    node_id: NodeId
    round_number: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message of the logical stream of one database, in its order; BeginPrepare is left out."""

    node_id: NodeId
    database: str
    message: Prepare | CommitPrepared | RollbackPrepared


@dataclass(frozen=True, slots=True)
class LimboEntry:
    """A row of pg_prepared_xacts. `xid` has 32 bits; `prepared_at_us`: since 2000-01-01 UTC."""

    gid: str
    database: str
    owner: str
    xid: int
    prepared_at_us: int


@dataclass(frozen=True, slots=True)
class LimboRead:
    """The answer to Read: all rows, of all databases, read between two flush positions.

    A row is listed only after its PREPARE was flushed, so `flushed_after_lsn`, read after the rows,
    is an upper bound of its end. Readings come in the order in which they were made.
    `server_now_ms`: the primary's clock, which deadlines and times of PREPARE are told by.
    """

    node_id: NodeId
    entries: tuple[LimboEntry, ...]
    flushed_before_lsn: int
    flushed_after_lsn: int
    server_now_ms: int


@dataclass(frozen=True, slots=True)
class WaitAsked:
    """WAIT_LSN: tell when the quorum has `lsn`; at `deadline_ms` at the latest. A deadline that is
    over, as 0 always is, asks just once.

    With `gid` the waiter is that transaction's client, from now on until WaiterGone, or until it
    names another one. `lsn` is then an upper bound of the end of its PREPARE.
    """

    waiter: int
    lsn: int
    deadline_ms: int
    gid: Gid | None = None


@dataclass(frozen=True, slots=True)
class BarrierAsked:
    """BARRIER: as WAIT_LSN, and a quorum must have answered a round after `after_round`, which is
    the newest one that had begun when the command came. `server`: timeline and start of the server
    that is read; without it a reader of a deposed primary who asks its successor is told what is
    not so.
    """

    waiter: int
    lsn: int
    deadline_ms: int
    after_round: int
    server: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ResolveAsked:
    """RESOLVE: an administrator ends `gid`; tell when the quorum has its end, or at the deadline.

    COMMIT is refused while the quorum lacks the PREPARE.
    """

    waiter: int
    gid: str
    commit: bool
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class WaitCancelled:
    """The question is taken back (57014, which the shell answers); the connection stays."""

    waiter: int


@dataclass(frozen=True, slots=True)
class WaiterGone:
    """The connection is closed: the client of the transaction it named is gone."""

    waiter: int


@dataclass(frozen=True, slots=True)
class FinishEnded:
    """The answer to Finish. `sqlstate` None: done, and the record ends at or below `end_lsn`, a
    flush position read after; else `end_lsn` is 0. A lost connection has its 08006 or 57P01."""

    node_id: NodeId
    gid: str
    sqlstate: str | None
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Tick:
    now_ms: int


Event = (
    Led
    | Fenced
    | CommitAdvanced
    | QuorumChanged
    | RoundAnswered
    | Decoded
    | LimboRead
    | WaitAsked
    | BarrierAsked
    | ResolveAsked
    | WaitCancelled
    | WaiterGone
    | FinishEnded
    | Tick
)

# ---- actions


class Verdict(Enum):
    """The value is the word on the wire."""

    CONFIRMED = "confirmed"  # of WAIT_LSN and BARRIER
    PENDING = "pending"  # the deadline; of a RESOLVE, too
    COMMITTED = "committed"  # of a RESOLVE, by the quorum
    ROLLED_BACK = "rolled_back"


@dataclass(frozen=True, slots=True)
class Answer:
    """`term` is that of the incarnation that leads."""

    waiter: int
    verdict: Verdict
    commit_lsn: int
    term: int


@dataclass(frozen=True, slots=True)
class RefuseWait:
    """An error instead of an answer, to any of the three questions."""

    waiter: int
    sqlstate: str
    text: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Finish:
    """COMMIT PREPARED or ROLLBACK PREPARED, in that database; answered by FinishEnded."""

    gid: str
    database: str
    commit: bool


@dataclass(frozen=True, slots=True)
class Read:
    """Read pg_prepared_xacts, answered by LimboRead. The shell has at most one under way: if it is
    told again meanwhile it reads once more after."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """What an operator should know, in a sentence."""

    text: str


Action = Answer | RefuseWait | Finish | Read | Alarm


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing more is admitted now: the error of ADMIT."""

    sqlstate: str
    text: str
    hint: str


class Order(Enum):
    """In which order verdicts are given: as they come, or as their PREPAREs lie in the log."""

    ANY = "any"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class LimboSettings:
    """`limbo_max`: gids of ours at a time; `read_interval_ms`: the longest time without a Read;
    `unread_max_ms`: without an answer to one, until no more is admitted."""

    limbo_max: int
    age_max_ms: int = 30_000
    orphan_grace_ms: int = 5_000
    order: Order = Order.ANY
    read_interval_ms: int = 1_000
    unread_max_ms: int = 10_000
