"""The next step of a failover: every step once, in the order that the law requires."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.failover.promotion import (
    FailoverState,
    Standby,
    Step,
    ahead_problem,
    fork_problem,
    is_at_or_past,
    next_of_attached,
    next_step,
    plan,
)

SAFEKEEPERS = ("a:5454", "b:5454", "c:5454")
OURS = ("walproposer",)
END = 0x5000000

READY = Standby(
    in_recovery=True,
    received_lsn=END,
    replayed_lsn=END,
    is_paused=False,
    sources=SAFEKEEPERS,
    standby_names=OURS,
    has_slot=True,
    checkpointer_idle=True,
    config_age_seconds=1000.0,
)


def state(standby: Standby, log_end_lsn: int | None = END) -> FailoverState:
    return FailoverState(
        standby=standby,
        safekeepers=SAFEKEEPERS,
        standby_names=OURS,
        log_end_lsn=log_end_lsn,
        is_settled=True,
    )


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({}, Step.PROMOTE),
        ({"has_slot": False}, Step.RESERVE),
        ({"replayed_lsn": END - 8}, Step.REPLAY),
        ({"sources": ("primary:5432",)}, Step.FOLLOW),
        ({"sources": ("a:5454", "primary:5432")}, Step.FOLLOW),
        ({"sources": ()}, Step.FOLLOW),
        ({"sources": ("c:5454",)}, Step.PROMOTE),
        ({"standby_names": ()}, Step.CONFIGURE),
        ({"standby_names": ("walproposer", "another")}, Step.CONFIGURE),
        ({"in_recovery": False}, Step.ATTACH),
        ({"in_recovery": False, "standby_names": ()}, Step.CONFIGURE),
        ({"in_recovery": False, "replayed_lsn": 0, "sources": ()}, Step.ATTACH),
        ({"may_prepare": True}, Step.CLOSE),
        ({"may_prepare": True, "is_closed": True}, Step.CLOSE),
        ({"may_prepare": True, "has_slot": False}, Step.RESERVE),
        ({"in_recovery": False, "may_prepare": True}, Step.ATTACH),
        ({"in_recovery": False, "limbo_len": 2}, Step.ATTACH),
        ({"in_recovery": False, "limbo_len": 2, "is_closed": True}, Step.ATTACH),
        ({"in_recovery": False, "is_closed": True}, Step.ATTACH),
        ({"in_recovery": False, "limbo_len": 1, "standby_names": ()}, Step.CONFIGURE),
    ],
)
def test_the_next_step(changes: dict[str, object], step: Step) -> None:
    assert next_step(state(replace(READY, **changes))) is step  # type: ignore[arg-type]


def test_without_an_election_nothing_is_known() -> None:
    assert next_step(state(READY, None)) is Step.ELECT
    assert next_step(state(replace(READY, standby_names=()), None)) is Step.CONFIGURE
    assert next_step(state(replace(READY, in_recovery=False), None)) is Step.ATTACH


def test_a_setting_not_yet_in_force_is_awaited() -> None:
    seen = replace(state(READY), is_settled=False)
    assert next_step(seen) is Step.SETTLE
    behind = replace(seen, standby=replace(READY, replayed_lsn=END - 8))
    assert next_step(behind) is Step.REPLAY


def test_a_stalled_standby_is_led_to_others() -> None:
    waiting = state(replace(READY, replayed_lsn=END - 8))
    assert next_step(waiting) is Step.REPLAY
    assert next_step(replace(waiting, is_stalled=True)) is Step.FOLLOW


def test_it_is_promoted_only_with_the_whole_log_and_waiting_commits() -> None:
    """Over all combinations of possible faults."""
    yes_or_no = (True, False)
    for in_recovery, lag, sources, names, settled, slot, end_lsn, stalled, room, limbo in product(
        yes_or_no, (0, 8), (SAFEKEEPERS, ("x:1",), ()), (OURS, ("x",), ()),
        yes_or_no, yes_or_no, (None, END), yes_or_no, yes_or_no, (0, 1),
    ):  # fmt: skip
        standby = Standby(
            in_recovery=in_recovery, received_lsn=END, replayed_lsn=END - lag, is_paused=bool(lag),
            sources=sources, standby_names=names, has_slot=slot, checkpointer_idle=settled,
            config_age_seconds=0.0, may_prepare=room, limbo_len=0 if in_recovery else limbo,
            is_closed=stalled,
        )  # fmt: skip
        seen = replace(state(standby, end_lsn), is_settled=settled, is_stalled=stalled)
        step = next_step(seen)
        if step is Step.PROMOTE:
            assert in_recovery
            assert end_lsn == standby.replayed_lsn
            assert names == OURS
            assert settled
            assert slot
            assert not room  # else it is closed before
        if step is Step.ATTACH:
            assert not in_recovery
            assert names == OURS
        steps = list(plan(seen))
        assert len(steps) == len(set(steps))
        assert steps == sorted(steps, key=list(Step).index)
        assert Step.ATTACH in steps


def test_the_whole_plan() -> None:
    raw = replace(
        READY, standby_names=(), sources=("primary:5432",), has_slot=False, may_prepare=True
    )
    assert list(plan(replace(state(raw, None), is_settled=False))) == list(Step)
    assert list(plan(state(READY, None))) == [
        Step.ELECT, Step.REPLAY, Step.PROMOTE, Step.ATTACH,
    ]  # fmt: skip
    assert list(plan(state(replace(READY, in_recovery=False)))) == [Step.ATTACH]


def test_no_client_writes_before_the_prepared_transactions_are_committed() -> None:
    """Over all combinations of prepared and closed, also after an interrupted run."""
    for in_recovery, is_closed, limbo_len in product((True, False), (True, False), (0, 1)):
        standby = replace(
            READY,
            in_recovery=in_recovery,
            may_prepare=True,
            is_closed=is_closed,
            limbo_len=0 if in_recovery else limbo_len,
        )
        steps = list(plan(state(standby)))
        if in_recovery:
            assert steps == [Step.CLOSE, Step.PROMOTE, Step.ATTACH, Step.RESOLVE, Step.OPEN]
        assert (Step.RESOLVE in steps) == (in_recovery or bool(limbo_len))
        assert (Step.OPEN in steps) == (in_recovery or is_closed)
        if not in_recovery:
            assert next_of_attached(limbo_len=limbo_len, is_closed=is_closed) is (
                Step.RESOLVE if limbo_len else Step.OPEN if is_closed else None
            )


def test_the_order_of_steps() -> None:
    assert is_at_or_past(Step.PROMOTE, Step.CLOSE)
    assert is_at_or_past(Step.CLOSE, Step.CLOSE)
    assert not is_at_or_past(Step.RESERVE, Step.CLOSE)


@pytest.mark.parametrize("field", ["received_lsn", "replayed_lsn"])
def test_a_standby_ahead_of_the_quorum_is_refused_with_both_positions(field: str) -> None:
    ahead = replace(READY, **{field: END + 8})  # type: ignore[arg-type]
    problem = ahead_problem(ahead, END)
    assert problem is not None
    assert "0/5000008" in problem.text
    assert "0/5000000" in problem.text
    assert "--keep-ahead" in problem.hint
    assert ahead_problem(ahead, END + 8) is None
    assert ahead_problem(replace(ahead, in_recovery=False), END) is None


def test_a_standby_of_a_deposed_primary_is_refused() -> None:
    log = TimelineHistory(2, (TimelineSwitch(1, Lsn(0x3000000)),))
    first = TimelineHistory(1)
    assert fork_problem(first, log, 0x1000000, 0x3000000) is None
    problem = fork_problem(first, log, 0x1000000, 0x3000008)
    assert problem is not None
    assert "diverge at 0/3000000" in problem.text
    other = TimelineHistory(2, (TimelineSwitch(1, Lsn(0x2000000)),))
    assert fork_problem(other, log, 0x1000000, 0x3000000) is not None
    assert fork_problem(log, log, 0x1000000, 0x9000000) is None
