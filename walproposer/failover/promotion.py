"""The next step of a failover, given the observed state. Pure; no I/O.

    CONFIGURE  set synchronous_standby_names on the standby, so that its first commit waits
    ELECT      win a new term: from now on no commit of the old primary can be acknowledged
    FOLLOW     point the standby at the safekeepers
    REPLAY     wait until it has replayed the log to its end
    SETTLE     wait until synchronous_standby_names is in effect
    RESERVE    create our slot: the new primary keeps its WAL until the proposer has it
    CLOSE      make sessions read-only: after the promotion the server accepts no writes yet
    PROMOTE    pg_promote
    ATTACH     attach the proposer; the new timeline begins with its term
    RESOLVE    commit the limbo of qsync; the proposer does this and the next step (`completion.py`)
    OPEN       allow writes again

Laws: a standby is promoted only when it has replayed the whole log of an election and its commits
already wait. Clients can write when everything that the log has prepared is committed. That is done
when the quorum has the new timeline: before that, the old primary may get the term back, and end
the same transactions differently. If nothing can be prepared (max_prepared_transactions is 0), the
three steps for that are left out. A completed step is not repeated, so a failover can be
interrupted at any moment and started again. Only an election is always repeated: it costs little
and proves the end of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from quorum_wal.consensus.tli_history import first_difference
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn


class Step(Enum):
    """The steps in order. The value describes the purpose."""

    CONFIGURE = "set synchronous_standby_names, so that its first commit waits for the quorum"
    ELECT = "win an election: from then on the old primary cannot have a commit acknowledged"
    FOLLOW = "point primary_conninfo at the safekeepers"
    REPLAY = "wait until the standby has replayed the log to its end"
    SETTLE = "wait until synchronous_standby_names is in effect"
    RESERVE = "create the proposer's slot"
    CLOSE = "make it read-only for clients, until prepared transactions are resolved"
    PROMOTE = "promote the standby"
    ATTACH = "attach the proposer"
    RESOLVE = "commit the prepared transactions of qsync that the log has"
    OPEN = "let clients write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standby:
    """The state that the server to be promoted reports. LSNs are 0 where it reports none.

    `sources` are the host:port pairs of its primary_conninfo. `may_prepare`: it has room for
    prepared transactions. `limbo_len`: the number of qsync transactions prepared in it; 0 on a
    standby, which cannot list them. `is_closed`: we have made its sessions read-only.
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
        """The end of the WAL that it has."""
        return max(self.received_lsn, self.replayed_lsn)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverState:
    """`log_end_lsn` is that of our election, None before. `is_settled`: synchronous_standby_names
    is known to be in effect. `is_stalled`: the standby follows the safekeepers, but has received
    nothing from them for a while. `is_closed`: every session is known to be read-only."""

    standby: Standby
    safekeepers: tuple[str, ...]
    standby_names: tuple[str, ...]
    log_end_lsn: int | None = None
    is_settled: bool = False
    is_stalled: bool = False
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class Problem:
    """Why this standby must not be promoted, and a hint."""

    text: str
    hint: str


def next_step(state: FailoverState) -> Step:
    """The next step. The caller has already ruled out a `Problem`."""
    standby = state.standby
    if standby.standby_names != state.standby_names:
        return Step.CONFIGURE
    if not standby.in_recovery:
        return Step.ATTACH
    if state.log_end_lsn is None:
        return Step.ELECT
    if not follows(standby, state.safekeepers) or state.is_stalled:
        return Step.FOLLOW
    if standby.replayed_lsn < state.log_end_lsn:
        return Step.REPLAY
    if not state.is_settled:
        return Step.SETTLE
    if not standby.has_slot:
        return Step.RESERVE
    return Step.CLOSE if standby.may_prepare and not state.is_closed else Step.PROMOTE


def next_of_attached(*, limbo_len: int, is_closed: bool) -> Step | None:
    """The next step of the proposer, once the quorum has its timeline; None: the failover is
    complete."""
    if limbo_len:
        return Step.RESOLVE
    return Step.OPEN if is_closed else None


def is_at_or_past(step: Step, until: Step) -> bool:
    """Whether `step` is `until` or a later step of a failover."""
    order = list(Step)
    return order.index(step) >= order.index(until)


def follows(standby: Standby, safekeepers: Sequence[str]) -> bool:
    """Whether its WAL comes only from safekeepers."""
    return bool(standby.sources) and set(standby.sources) <= set(safekeepers)


def plan(state: FailoverState) -> Iterator[Step]:
    """All steps that are left, if every step succeeds."""
    step: Step | None = next_step(state)
    while step is not None:
        yield step
        is_attached = is_at_or_past(step, Step.ATTACH)
        state = _after(step, state)
        server = state.standby
        step = (
            next_of_attached(limbo_len=server.limbo_len, is_closed=server.is_closed)
            if is_attached
            else next_step(state)
        )


def _after(step: Step, state: FailoverState) -> FailoverState:
    standby = state.standby
    match step:
        case Step.CONFIGURE:
            standby = replace(standby, standby_names=state.standby_names)
            state = replace(state, is_settled=False)
        case Step.ELECT:
            # What the standby lacks is known only after the election. A plan assumes that it lacks
            # something.
            end_lsn = standby.end_lsn + 1
            return replace(state, log_end_lsn=end_lsn)
        case Step.FOLLOW:
            standby = replace(standby, sources=state.safekeepers)
            state = replace(state, is_stalled=False)
        case Step.REPLAY:
            end_lsn = state.log_end_lsn or 0
            standby = replace(standby, replayed_lsn=end_lsn)
        case Step.SETTLE:
            state = replace(state, is_settled=True)
        case Step.RESERVE:
            standby = replace(standby, has_slot=True)
        case Step.CLOSE:
            standby = replace(standby, is_closed=True)
            state = replace(state, is_closed=True)
        case Step.PROMOTE:
            # What is prepared in its WAL is known only after the promotion. A plan assumes that
            # something is.
            standby = replace(standby, in_recovery=False, limbo_len=int(standby.may_prepare))
        case Step.RESOLVE:
            standby = replace(standby, limbo_len=0)
        case Step.OPEN:
            standby = replace(standby, is_closed=False)
        case Step.ATTACH:
            pass  # it changes nothing that the server reports
        case _:
            assert_never(step)
    return replace(state, standby=standby)


def ahead_problem(standby: Standby, log_end_lsn: int) -> Problem | None:
    """A standby that followed the old primary directly may have WAL that the quorum lacks.

    No client was told that it is committed. The operator must decide whether to keep it.
    """
    if not standby.in_recovery or standby.end_lsn <= log_end_lsn:
        return None
    return Problem(
        f"the standby has WAL up to {format_lsn(standby.end_lsn)}, "
        f"but the quorum's log ends at {format_lsn(log_end_lsn)}",
        "It followed the old primary directly. The WAL beyond that was never acknowledged. Promote "
        "a standby that follows the safekeepers, or keep this WAL: sk promote --keep-ahead.",
    )


def fork_problem(
    ours: TimelineHistory, log: TimelineHistory, begin_lsn: int, end_lsn: int
) -> Problem | None:
    """A standby that left the log's timeline below `end_lsn`, the end of its WAL."""
    fork_lsn = first_difference(ours, log, begin_lsn, end_lsn)
    if fork_lsn is None:
        return None
    return Problem(
        f"the standby (timeline {ours.tli}, WAL up to {format_lsn(end_lsn)}) and the quorum's log "
        f"(timeline {log.tli}) diverge at {format_lsn(fork_lsn)}",
        "This standby follows a primary that was deposed. Rebuild it with pg_rewind or a base "
        "backup, or promote another one.",
    )
