"""What a failover does next, given what was seen. Pure; no I/O.

    CONFIGURE  synchronous_standby_names, while it is a standby: its first commit waits already
    ELECT      a new term: from here on the old primary cannot have a commit acknowledged
    FOLLOW     the standby is pointed at the safekeepers
    REPLAY     wait until it has replayed the log to its end
    SETTLE     wait until synchronous_standby_names is in force
    RESERVE    our slot: the new primary keeps its WAL until the proposer has it
    CLOSE      sessions are read-only by default: promoted, it takes no more writes than a standby
    PROMOTE    pg_promote
    ATTACH     the proposer; the new timeline begins with its term
    RESOLVE    the limbo of qsync is committed; as the next one the proposer does it (`opening.py`)
    OPEN       sessions may write again

Laws: a standby is promoted only when it has replayed the whole log of an election and its commits
already wait. Clients are let in when what the log has prepared is committed, and that is done when
the quorum has the new timeline: before, the old primary may be given the term back, and end the
same transactions otherwise. Where nothing can be prepared (max_prepared_transactions is 0) the
three steps for that are left out. A step that is done is not done again, so a failover may be
broken off at any moment and started anew; only an election is always held again, as it costs
nothing and proves the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from consensus.tli_history import first_difference
from pgwal.history import TimelineHistory
from pgwal.lsn import format_lsn


class Step(Enum):
    """In this order; the value says what it is for."""

    CONFIGURE = "set synchronous_standby_names, so that its first commit waits for the quorum"
    ELECT = "win an election: from then on the old primary cannot have a commit acknowledged"
    FOLLOW = "point primary_conninfo at the safekeepers"
    REPLAY = "wait until the standby has replayed the log to its end"
    SETTLE = "wait until synchronous_standby_names is in force"
    RESERVE = "create the proposer's slot"
    CLOSE = "make it read-only for clients, until prepared transactions are resolved"
    PROMOTE = "promote the standby"
    ATTACH = "attach the proposer"
    RESOLVE = "commit the prepared transactions of qsync that the log has"
    OPEN = "let clients write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """What the server to be promoted says of itself. LSNs are 0 where it says nothing.

    `sources` are the host:port of its primary_conninfo. `may_prepare`: it has room for prepared
    transactions; `limbo_len`: so many of qsync wait in it, 0 on a standby, which cannot tell.
    `is_closed`: we have made its sessions read-only.
    """

    in_recovery: bool
    received_lsn: int
    replayed_lsn: int
    is_paused: bool
    sources: tuple[str, ...]
    standby_names: tuple[str, ...]
    has_slot: bool
    checkpointer_idle: bool
    config_age_seconds: float
    may_prepare: bool = False
    limbo_len: int = 0
    is_closed: bool = False

    @property
    def end_lsn(self) -> int:
        """The end of what it has."""
        return max(self.received_lsn, self.replayed_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """`log_end_lsn` is that of our election, None before. `is_settled`: synchronous_standby_names
    is surely in force. `is_stalled`: the standby names the safekeepers, but nothing has come from
    them for a while. `is_closed`: every session is surely read-only by now."""

    standby: Standby
    safekeepers: tuple[str, ...]
    standby_names: tuple[str, ...]
    log_end_lsn: int | None = None
    is_settled: bool = False
    is_stalled: bool = False
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Why this standby must not be promoted, and the way out."""

    text: str
    hint: str


def next_step(situation: Situation) -> Step:
    """The one thing to do now; a `problem` has been excluded before."""
    standby = situation.standby
    if standby.standby_names != situation.standby_names:
        return Step.CONFIGURE
    if not standby.in_recovery:
        return Step.ATTACH
    if situation.log_end_lsn is None:
        return Step.ELECT
    if not follows(standby, situation.safekeepers) or situation.is_stalled:
        return Step.FOLLOW
    if standby.replayed_lsn < situation.log_end_lsn:
        return Step.REPLAY
    if not situation.is_settled:
        return Step.SETTLE
    if not standby.has_slot:
        return Step.RESERVE
    return Step.CLOSE if standby.may_prepare and not situation.is_closed else Step.PROMOTE


def next_of_attached(*, limbo_len: int, is_closed: bool) -> Step | None:
    """What its proposer does, once the quorum has its timeline; None: all is done."""
    if limbo_len:
        return Step.RESOLVE
    return Step.OPEN if is_closed else None


def is_at_or_past(step: Step, until: Step) -> bool:
    """In the order of a failover."""
    order = list(Step)
    return order.index(step) >= order.index(until)


def follows(standby: Standby, safekeepers: Sequence[str]) -> bool:
    """Whether its WAL comes from safekeepers only."""
    return bool(standby.sources) and set(standby.sources) <= set(safekeepers)


def plan(situation: Situation) -> Iterator[Step]:
    """All that is left to do, if every step does what it is for."""
    step: Step | None = next_step(situation)
    while step is not None:
        yield step
        is_attached = is_at_or_past(step, Step.ATTACH)
        situation = _after(step, situation)
        server = situation.standby
        step = (
            next_of_attached(limbo_len=server.limbo_len, is_closed=server.is_closed)
            if is_attached
            else next_step(situation)
        )


def _after(step: Step, situation: Situation) -> Situation:
    standby = situation.standby
    match step:
        case Step.CONFIGURE:
            standby = replace(standby, standby_names=situation.standby_names)
            situation = replace(situation, is_settled=False)
        case Step.ELECT:
            # What the standby lacks is known only now; in a plan it always lacks something.
            end_lsn = standby.end_lsn + 1
            return replace(situation, log_end_lsn=end_lsn)
        case Step.FOLLOW:
            standby = replace(standby, sources=situation.safekeepers)
            situation = replace(situation, is_stalled=False)
        case Step.REPLAY:
            end_lsn = situation.log_end_lsn or 0
            standby = replace(standby, replayed_lsn=end_lsn)
        case Step.SETTLE:
            situation = replace(situation, is_settled=True)
        case Step.RESERVE:
            standby = replace(standby, has_slot=True)
        case Step.CLOSE:
            standby = replace(standby, is_closed=True)
            situation = replace(situation, is_closed=True)
        case Step.PROMOTE:
            # What is prepared in its WAL is known only now; in a plan there always is something.
            standby = replace(standby, in_recovery=False, limbo_len=int(standby.may_prepare))
        case Step.RESOLVE:
            standby = replace(standby, limbo_len=0)
        case Step.OPEN:
            standby = replace(standby, is_closed=False)
        case Step.ATTACH:
            pass  # nothing that is seen in the server
        case _:
            assert_never(step)
    return replace(situation, standby=standby)


def ahead_problem(standby: Standby, log_end_lsn: int) -> Problem | None:
    """A standby that followed the old primary directly may have what the quorum has not.

    No client was told that it is committed. Whether to keep it is the operator's decision.
    """
    if not standby.in_recovery or standby.end_lsn <= log_end_lsn:
        return None
    return Problem(
        f"the standby has WAL up to {format_lsn(standby.end_lsn)}, "
        f"but the quorum's log ends at {format_lsn(log_end_lsn)}",
        "It followed the old primary directly; what lies beyond was never acknowledged. Promote a "
        "standby that follows the safekeepers, or keep what this one has: sk promote --keep-ahead.",
    )


def fork_problem(
    ours: TimelineHistory, log: TimelineHistory, begin_lsn: int, end_lsn: int
) -> Problem | None:
    """A standby that left the log's timeline below `end_lsn`, the end of what it has."""
    fork_lsn = first_difference(ours, log, begin_lsn, end_lsn)
    if fork_lsn is None:
        return None
    return Problem(
        f"the standby (timeline {ours.tli}, WAL up to {format_lsn(end_lsn)}) and the quorum's log "
        f"(timeline {log.tli}) part at {format_lsn(fork_lsn)}",
        "This standby follows a primary that was deposed. Rebuild it with pg_rewind or a base "
        "backup, or promote another one.",
    )
