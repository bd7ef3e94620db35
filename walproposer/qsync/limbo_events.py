"""The events and actions of the core of the limbo. Pure values.

Times are milliseconds since the Unix epoch, on a clock that does not jump (the wall clock once,
then a monotonic one). `waiter` is the number of a connection of the coordinator's port; a
connection has one question at a time. Events about a primary have the NodeId of their incarnation,
so that the core can ignore late ones of an older incarnation. The shell executes a list of actions
in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.tli_history import last_switch_lsn
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.qsync.gid import Gid

NEVER_LSN = (1 << 64) - 1  # `Limbo.wake_lsn` if nothing waits: commit_lsn never reaches it

# ---- events


@dataclass(frozen=True, slots=True)
class Led:
    """An incarnation leads. `history` is that of the primary's timeline, read from the primary.
    `server_start_us` distinguishes its server from others on a timeline of the same number
    (`gid.py`).

    Everything known about prepared transactions is dropped: the primary may be another one.
    """

    node_id: NodeId
    term_start_lsn: int
    history: TimelineHistory
    server_start_us: int

    @property
    def server(self) -> tuple[int, int]:
        """Timeline and start time, as in a gid and in a BARRIER."""
        return self.history.tli, self.server_start_us

    @property
    def decides_lsn(self) -> int:
        """The commit_lsn from which on there are verdicts. It is above all that an older term has
        reported, and above the first byte of the primary's timeline, so no other timeline can
        follow."""
        return max(self.term_start_lsn, last_switch_lsn(self.history) + 1)


@dataclass(frozen=True, slots=True)
class Fenced:
    """The incarnation no longer leads, or the process ends. It comes before any other sign of
    that."""

    reason: str


@dataclass(frozen=True, slots=True)
class CommitAdvanced:
    """A quorum has everything below `commit_lsn`, in the term of `node_id`."""

    node_id: NodeId
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class QuorumChanged:
    """Whether a quorum answers now. Assumed to be true when an incarnation begins to lead."""

    ok: bool


@dataclass(frozen=True, slots=True)
class RoundAnswered:
    """A quorum has answered messages of the term that were all sent in round `round_number` or
    later: when that round began, no quorum had promised a greater term."""

    node_id: NodeId
    round_number: int


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message of the logical stream of one database, in stream order, without BeginPrepare."""

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
    is an upper bound of its end. Readings arrive in the order in which they were made.
    `server_now_ms` is the primary's clock, on which deadlines and times of PREPARE are based.
    """

    node_id: NodeId
    entries: tuple[LimboEntry, ...]
    flushed_before_lsn: int
    flushed_after_lsn: int
    server_now_ms: int


@dataclass(frozen=True, slots=True)
class WaitAsked:
    """WAIT_LSN: answer when the quorum has `lsn`, at `deadline_ms` at the latest. A deadline that
    has passed, such as 0, asks only once.

    With `gid` the waiter is the client of that transaction, until WaiterGone, or until it names
    another gid. `lsn` is then an upper bound of the end of its PREPARE.
    """

    waiter: int
    lsn: int
    deadline_ms: int
    gid: Gid | None = None


@dataclass(frozen=True, slots=True)
class BarrierAsked:
    """BARRIER: like WAIT_LSN, and a quorum must have answered a round after `after_round`, the
    newest round that had begun when the command came. `server`: timeline and start time of the
    server that is read. Without it, a reader of a deposed primary that asks the successor's
    coordinator would get a wrong answer."""

    waiter: int
    lsn: int
    deadline_ms: int
    after_round: int
    server: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ResolveAsked:
    """RESOLVE: an administrator finishes `gid`. Answer when the quorum has its end, or at the
    deadline. COMMIT is refused while the quorum lacks the PREPARE."""

    waiter: int
    gid: str
    commit: bool
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class WaitCancelled:
    """The question is cancelled (57014, which the shell answers); the connection stays open."""

    waiter: int


@dataclass(frozen=True, slots=True)
class WaiterGone:
    """The connection is closed: the client of the transaction that it named has disconnected."""

    waiter: int


@dataclass(frozen=True, slots=True)
class FinishEnded:
    """The answer to Finish. `sqlstate` None: done, and the record ends at or below `end_lsn`, a
    flush position read afterwards; else `end_lsn` is 0. A lost connection is reported as 08006 or
    57P01."""

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
    PENDING = "pending"  # at the deadline; also for a RESOLVE
    COMMITTED = "committed"  # for a RESOLVE: the quorum has its end
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
    """An error as the answer to any of the three questions."""

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
    """Read pg_prepared_xacts, answered by LimboRead. The shell runs at most one at a time. Another
    Read in the meantime makes it read once more afterwards."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A sentence for the operator."""

    text: str


Action = Answer | RefuseWait | Finish | Read | Alarm


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why no transaction is admitted now: the error of ADMIT."""

    sqlstate: str
    text: str
    hint: str


class Order(Enum):
    """The order of verdicts: any, or that of their PREPAREs in the log."""

    ANY = "any"
    FIFO = "fifo"


@dataclass(frozen=True, slots=True)
class LimboSettings:
    """`limbo_max`: the greatest number of gids of qsync at a time. `read_interval_ms`: the longest
    time without a Read. `unread_max_ms`: the longest time without an answer to one, after which
    nothing is admitted."""

    limbo_max: int
    age_max_ms: int = 30_000
    orphan_grace_ms: int = 5_000
    order: Order = Order.ANY
    read_interval_ms: int = 1_000
    unread_max_ms: int = 10_000
