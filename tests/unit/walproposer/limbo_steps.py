"""A limbo to test: gids, and the events that most tests begin with."""

from __future__ import annotations

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.pgwire.replication import POSTGRES_EPOCH_UNIX_S
from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import (
    Action,
    Answer,
    CommitAdvanced,
    Decoded,
    Finish,
    Led,
    LimboEntry,
    LimboRead,
    LimboSettings,
    Tick,
    Verdict,
    WaitAsked,
)

#: The wall clock when a test begins, and the time of Postgres then.
BEGIN_MS = POSTGRES_EPOCH_UNIX_S * 1000
#: Of the primary's server.
START_US = 77
NODE = NodeId(5, b"p" * 16)
OLDER = NodeId(4, b"p" * 16)
SETTINGS = LimboSettings(limbo_max=10)


def gid_of(
    number: int = 1,
    *,
    begin_lsn: int = 1100,
    policy: Policy = Policy.DETACH,
    deadline_ms: int = 1000,
    tli: int = 1,
    start_us: int = START_US,
) -> Gid:
    """Its xid is 700 + number; the deadline counts from the begin of the test."""
    place = (tli, begin_lsn, 700 + number, start_us)
    return Gid(policy, BEGIN_MS + deadline_ms, *place, f"{number:032x}")


def history(tli: int = 1, *left: tuple[int, int]) -> TimelineHistory:
    """`history(3, (1, 500), (2, 900))`: timeline 1 was left at 500, 2 at 900."""
    return TimelineHistory(tli, tuple(TimelineSwitch(old, Lsn(lsn)) for old, lsn in left))


def led(node_id: NodeId = NODE, term_start_lsn: int = 1000, *left: tuple[int, int]) -> Led:
    """Without timelines that were left, the first."""
    tli = left[-1][0] + 1 if left else 1
    return Led(node_id, term_start_lsn, history(tli, *left), START_US)


class Coordinator:
    """The core, and its actions since the last look."""

    def __init__(self, settings: LimboSettings = SETTINGS, first: Led | None = None) -> None:
        self.limbo = Limbo(settings)
        self.node_id = NODE
        self._waiters = 0
        self.now_ms, self.ahead_ms = BEGIN_MS, 0
        if first is not None:
            self.step(first)

    @classmethod
    def deciding(cls, settings: LimboSettings = SETTINGS, commit_lsn: int = 1000) -> Coordinator:
        """It leads, the quorum has the begin of its term, and the limbo was read: empty."""
        coordinator = cls(settings, led())
        coordinator.at(0)
        coordinator.commit(commit_lsn)
        coordinator.read(commit_lsn)
        return coordinator

    def step(self, event: object) -> list[Action]:
        if isinstance(event, Led):
            self.node_id = event.node_id
        return self.limbo.step(event)  # type: ignore[arg-type]

    def at(self, ms: int) -> list[Action]:
        """Time since the begin of the test."""
        self.now_ms = BEGIN_MS + ms
        return self.step(Tick(self.now_ms))

    def commit(self, lsn: int) -> list[Action]:
        return self.step(CommitAdvanced(self.node_id, lsn))

    def wait(
        self, lsn: int, *, gid: Gid | None = None, until_ms: int = 1000, waiter: int | None = None
    ) -> list[Action]:
        """A new connection each time, numbered from 1, unless one is given."""
        self._waiters += 1
        deadline_ms = BEGIN_MS + until_ms if until_ms else 0
        return self.step(WaitAsked(waiter or self._waiters, lsn, deadline_ms, gid))

    def prepared(self, gid: Gid, end_lsn: int, *, at_us: int = 0) -> list[Action]:
        """From the stream; the record has 50 bytes."""
        xid = gid.xid & 0xFFFF_FFFF
        message = Prepare(end_lsn - 50, end_lsn, at_us, xid, str(gid))
        return self.step(Decoded(self.node_id, "a", message))

    def committed(self, gid: Gid, end_lsn: int) -> list[Action]:
        xid = gid.xid & 0xFFFF_FFFF
        message = CommitPrepared(end_lsn - 50, end_lsn, 1, xid, str(gid))
        return self.step(Decoded(self.node_id, "a", message))

    def rolled_back(
        self, gid: Gid, prepare_end_lsn: int, end_lsn: int, *, at_us: int = 0
    ) -> list[Action]:
        xid = gid.xid & 0xFFFF_FFFF
        message = RollbackPrepared(prepare_end_lsn, end_lsn, at_us, 1, xid, str(gid))
        return self.step(Decoded(self.node_id, "a", message))

    def read(
        self, after_lsn: int, *rows: LimboEntry, before_lsn: int | None = None
    ) -> list[Action]:
        before_lsn = after_lsn if before_lsn is None else before_lsn
        now_ms = self.now_ms + self.ahead_ms
        return self.step(LimboRead(self.node_id, rows, before_lsn, after_lsn, now_ms))


def row(gid: Gid, *, at_us: int = 0, database: str = "a") -> LimboEntry:
    return LimboEntry(str(gid), database, "owner", gid.xid & 0xFFFF_FFFF, at_us)


def answers(actions: list[Action]) -> dict[int, Verdict]:
    return {action.waiter: action.verdict for action in actions if isinstance(action, Answer)}


def finishes(actions: list[Action]) -> list[tuple[str, bool]]:
    """Gid and whether it is to be committed."""
    return [(action.gid, action.commit) for action in actions if isinstance(action, Finish)]
