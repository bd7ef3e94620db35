"""Finishing abandoned transactions: the janitor, and administrators."""

from __future__ import annotations

from dataclasses import replace

import pytest
from limbo_steps import (
    BEGIN_MS,
    NODE,
    SETTINGS,
    Coordinator,
    answers,
    finishes,
    gid_of,
    led,
    row,
)

from quorum_wal.qsync.gid import Gid, Policy
from quorum_wal.walproposer.qsync.limbo import EntryState
from quorum_wal.walproposer.qsync.limbo_events import (
    Action,
    Alarm,
    Fenced,
    Finish,
    FinishEnded,
    Order,
    Read,
    RefuseWait,
    ResolveAsked,
    Verdict,
    WaiterGone,
)
from quorum_wal.walproposer.qsync.limbo_table import Fate

#: The deadline of both is at 1000 ms.
DETACH = gid_of(1)
ROLLBACK = gid_of(2, policy=Policy.ROLLBACK)
LATER = gid_of(3, deadline_ms=1_000_000)
GRACE_MS = SETTINGS.orphan_grace_ms


def with_entries(*gids: Gid, commit_lsn: int, end_lsn: int = 1200) -> Coordinator:
    """Known by the stream; each ends so much later than the one before."""
    coordinator = Coordinator.deciding(commit_lsn=commit_lsn)
    for number, gid in enumerate(gids):
        coordinator.prepared(gid, end_lsn + 100 * number)
    return coordinator


def ended(gid: Gid, sqlstate: str | None = None, end_lsn: int = 0) -> FinishEnded:
    return FinishEnded(NODE, str(gid), sqlstate, end_lsn)


# ---- when


@pytest.mark.parametrize("gid", [DETACH, ROLLBACK])
def test_one_without_a_client_is_committed_after_its_deadline(gid: Gid) -> None:
    coordinator = with_entries(gid, commit_lsn=1200)
    assert finishes(coordinator.at(1000 + GRACE_MS - 1)) == []
    assert finishes(coordinator.at(1000 + GRACE_MS)) == [(str(gid), True)]


def test_the_order_is_given_once() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    assert finishes(coordinator.at(1000 + GRACE_MS)) == [(str(DETACH), True)]
    assert finishes(coordinator.at(1000 + GRACE_MS + 1)) == []
    assert coordinator.limbo.rows()[0].state is EntryState.FINISHING


def test_one_whose_client_left_is_committed_after_the_grace() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.wait(1200, gid=DETACH)
    coordinator.at(100)
    coordinator.step(WaiterGone(1))
    assert finishes(coordinator.at(100 + GRACE_MS - 1)) == []
    assert finishes(coordinator.at(100 + GRACE_MS)) == [(str(DETACH), True)]


def test_one_with_a_connected_client_is_left_alone_until_the_grace_after_its_deadline() -> None:
    """An open connection does not hold locks forever."""
    coordinator = with_entries(DETACH, ROLLBACK, commit_lsn=1250)
    coordinator.wait(1200, gid=DETACH)
    coordinator.wait(1300, gid=ROLLBACK)
    assert finishes(coordinator.at(1000 + GRACE_MS - 1)) == []
    ended = [(str(DETACH), True), (str(ROLLBACK), False)]
    assert finishes(coordinator.at(1000 + GRACE_MS)) == ended


def test_a_client_that_comes_back_is_here() -> None:
    coordinator = with_entries(LATER, commit_lsn=1200)
    coordinator.wait(1200, gid=LATER)
    coordinator.step(WaiterGone(1))
    coordinator.wait(1200, gid=LATER)
    assert finishes(coordinator.at(900_000)) == []


def test_a_connection_that_names_another_transaction_has_left_the_first() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.wait(1200, gid=DETACH, waiter=7)
    coordinator.wait(1200, gid=gid_of(3), waiter=7)
    assert finishes(coordinator.at(GRACE_MS)) == [(str(DETACH), True)]


def test_two_connections_for_one_transaction() -> None:
    coordinator = with_entries(LATER, commit_lsn=1200)
    coordinator.wait(1200, gid=LATER, waiter=1)
    coordinator.wait(1200, gid=LATER, waiter=2)
    coordinator.step(WaiterGone(1))
    assert finishes(coordinator.at(900_000)) == []


# ---- what


def test_what_the_quorum_lacks_is_left() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1199)
    assert finishes(coordinator.at(1_000_000)) == []
    coordinator.commit(1200)
    assert finishes(coordinator.at(1_000_100)) == [(str(DETACH), True)]


def test_rolled_back_by_policy_after_the_deadline_when_the_quorum_lacks_it() -> None:
    coordinator = with_entries(ROLLBACK, commit_lsn=1199)
    coordinator.wait(1200, gid=ROLLBACK)
    coordinator.step(WaiterGone(1))
    assert finishes(coordinator.at(999)) == []
    assert finishes(coordinator.at(1000 + GRACE_MS)) == [(str(ROLLBACK), False)]


def test_what_the_quorum_has_is_never_rolled_back() -> None:
    coordinator = with_entries(ROLLBACK, commit_lsn=1200)
    assert finishes(coordinator.at(1_000_000)) == [(str(ROLLBACK), True)]


def test_between_both_bounds_it_is_left() -> None:
    """Known only from a reading: it ends above 1100, at or below 1500."""
    coordinator = Coordinator.deciding(commit_lsn=1100)
    coordinator.read(1500, row(ROLLBACK))
    for lsn in (1101, 1300, 1499):
        coordinator.commit(lsn)
        assert finishes(coordinator.at(1_000_000 + lsn)) == []
    coordinator.commit(1500)
    assert finishes(coordinator.at(2_000_000)) == [(str(ROLLBACK), True)]


def test_at_the_lower_bound_it_is_rolled_back() -> None:
    coordinator = Coordinator.deciding(commit_lsn=1100)
    coordinator.read(1500, row(ROLLBACK))
    assert finishes(coordinator.at(1_000_000)) == [(str(ROLLBACK), False)]


def test_nothing_before_the_term_start() -> None:
    coordinator = Coordinator(first=led(term_start_lsn=2000))
    coordinator.prepared(ROLLBACK, 1200)
    coordinator.prepared(DETACH, 1300)
    coordinator.commit(1999)
    assert finishes(coordinator.at(1_000_000)) == []


def test_what_is_older_than_the_failover_is_committed_at_once() -> None:
    coordinator = Coordinator(first=led(NODE, 1500, (1, 1500)))
    coordinator.at(0)
    coordinator.read(1600, row(ROLLBACK))
    coordinator.wait(1400, gid=ROLLBACK)
    coordinator.commit(1599)
    assert finishes(coordinator.at(1)) == []
    coordinator.commit(1600)
    assert finishes(coordinator.at(2)) == [(str(ROLLBACK), True)]


def test_with_fifo_what_is_before_goes_first() -> None:
    coordinator = Coordinator.deciding(replace(SETTINGS, order=Order.FIFO), 2000)
    first, second = gid_of(1, deadline_ms=500_000), gid_of(2)
    coordinator.prepared(first, 1200)
    coordinator.prepared(second, 1300)
    coordinator.read(1300, row(first), row(second))
    assert finishes(coordinator.at(100_000)) == []
    assert finishes(coordinator.at(500_000 + GRACE_MS)) == [(str(first), True)]
    coordinator.step(ended(first, None, 1400))
    assert finishes(coordinator.at(600_000)) == [(str(second), True)]


# ---- what becomes of it


def test_a_finished_one_has_left() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.at(1_000_000)
    assert coordinator.step(ended(DETACH, None, 1300)) == []
    departure = coordinator.limbo.table.departures[str(DETACH)]
    assert (departure.fate, departure.end_lsn) == (Fate.COMMITTED, 1300)
    assert coordinator.limbo.counts["janitor committed"] == 1
    assert finishes(coordinator.at(2_000_000)) == []


@pytest.mark.parametrize(
    ("sqlstate", "after_ms", "reads"),
    [("55000", 100, False), ("42704", 1000, True), ("08006", 1000, True), ("57P01", 1000, True)],
)
def test_what_failed_is_tried_again(sqlstate: str, after_ms: int, reads: bool) -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.at(1_000_000)
    assert coordinator.step(ended(DETACH, sqlstate)) == [Read()] * reads
    assert finishes(coordinator.at(1_000_000 + after_ms - 1)) == []
    assert finishes(coordinator.at(1_000_000 + after_ms)) == [(str(DETACH), True)]


def test_a_forbidden_finish_alarms_once() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.at(1_000_000)
    actions = coordinator.step(ended(DETACH, "42501"))
    text = f"could not finish {DETACH}: SQLSTATE 42501; its locks stay until it is finished"
    assert [a.text for a in actions if isinstance(a, Alarm)] == [text]
    assert finishes(coordinator.at(1_009_999)) == []
    assert finishes(coordinator.at(1_010_000)) == [(str(DETACH), True)]
    assert not any(isinstance(a, Alarm) for a in coordinator.step(ended(DETACH, "42501")))


def test_nothing_is_confirmed_while_it_is_rolled_back() -> None:
    coordinator = with_entries(ROLLBACK, commit_lsn=1100)
    assert finishes(coordinator.at(1_000_000)) == [(str(ROLLBACK), False)]
    coordinator.wait(1200, gid=ROLLBACK, until_ms=2_000_000)
    assert answers(coordinator.commit(1300)) == {}
    assert answers(coordinator.step(ended(ROLLBACK, None, 1400))) == {1: Verdict.PENDING}


def test_after_a_fence_nothing_is_under_way() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.at(1_000_000)
    coordinator.step(Fenced("over"))
    assert coordinator.step(ended(DETACH, None, 1300)) == []
    assert coordinator.limbo.table.departures == {}


# ---- administrators


def resolve(gid: Gid | str, *, commit: bool, until_ms: int = 500) -> ResolveAsked:
    return ResolveAsked(9, str(gid), commit, BEGIN_MS + until_ms)


def refused(actions: list[Action]) -> tuple[str, str]:
    (refusal,) = actions
    assert isinstance(refusal, RefuseWait)
    return refusal.sqlstate, refusal.text


@pytest.mark.parametrize("commit", [True, False])
def test_resolved_when_the_quorum_has_the_end(commit: bool) -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    assert coordinator.step(resolve(DETACH, commit=commit)) == [Finish(str(DETACH), "a", commit)]
    assert coordinator.step(ended(DETACH, None, 1300)) == []
    verdict = Verdict.COMMITTED if commit else Verdict.ROLLED_BACK
    assert answers(coordinator.commit(1300)) == {9: verdict}


def test_pending_while_the_quorum_lacks_the_end() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.step(resolve(DETACH, commit=False))
    coordinator.step(ended(DETACH, None, 1300))
    assert answers(coordinator.at(500)) == {9: Verdict.PENDING}


def test_a_prepare_that_the_quorum_lacks_is_never_committed() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1199)
    assert refused(coordinator.step(resolve(DETACH, commit=True))) == (
        "55000",
        f'the quorum does not have prepared transaction "{DETACH}"',
    )


def test_what_may_have_been_seen_before_a_failover_is_not_rolled_back() -> None:
    coordinator = Coordinator(first=led(NODE, 1500, (1, 1500)))
    coordinator.read(1600, row(DETACH))
    coordinator.commit(1600)
    assert refused(coordinator.step(resolve(DETACH, commit=False))) == (
        "55000",
        f'prepared transaction "{DETACH}" is older than the last failover',
    )


@pytest.mark.parametrize(
    ("gid", "sqlstate"), [("other", "22023"), (str(gid_of(5)), "42704"), (str(DETACH), "55000")]
)
def test_what_cannot_be_resolved(gid: str, sqlstate: str) -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.at(1_000_000)  # the janitor is at it
    assert refused(coordinator.step(resolve(gid, commit=True)))[0] == sqlstate


def test_a_busy_one_is_tried_until_the_deadline() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.step(resolve(DETACH, commit=False))
    assert coordinator.step(ended(DETACH, "55000")) == []
    assert finishes(coordinator.at(100)) == [(str(DETACH), False)]
    coordinator.step(ended(DETACH, "55000"))
    actions = coordinator.at(500)
    assert answers(actions) == {9: Verdict.PENDING}
    assert finishes(actions) == []


def test_a_finish_by_another_session_is_reported() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.step(resolve(DETACH, commit=False))
    read, refusal = coordinator.step(ended(DETACH, "42704"))
    assert read == Read()
    assert isinstance(refusal, RefuseWait)
    assert refusal.sqlstate == "42704"


def test_an_administrator_who_disconnected_gets_no_answer() -> None:
    coordinator = with_entries(DETACH, commit_lsn=1200)
    coordinator.step(resolve(DETACH, commit=False))
    coordinator.step(WaiterGone(9))
    coordinator.step(ended(DETACH, None, 1300))
    assert coordinator.commit(1300) == []


def test_there_is_no_resolve_before_the_term_start() -> None:
    coordinator = Coordinator(first=led())
    coordinator.prepared(DETACH, 1200)
    assert refused(coordinator.step(resolve(DETACH, commit=True)))[0] == "57P03"
