"""The outcome of a transaction, from the available information: one test for each line of its
table."""

from __future__ import annotations

from typing import Any

import pytest
from limbo_steps import NODE, START_US, gid_of, history

from quorum_wal.walproposer.qsync.limbo_events import Led
from quorum_wal.walproposer.qsync.limbo_table import Departure, Fate
from quorum_wal.walproposer.qsync.outcome_answer import (
    Evidence,
    OutcomeAnswer,
    XidStatus,
    outcome_of,
)

COMMITTED, ROLLED_BACK = Fate.COMMITTED, Fate.ROLLED_BACK
PENDING, UNKNOWN = Fate.PENDING, Fate.UNKNOWN
GID = gid_of(begin_lsn=1100)
FIRST = Led(NODE, 1000, history(), START_US)


def answer(status: XidStatus = XidStatus.ABORTED, **others: Any) -> OutcomeAnswer:
    """Flushed up to 2000, which the quorum has, unless given otherwise."""
    facts: dict[str, Any] = {
        "gid": GID,
        "lsn": 0,
        "led": FIRST,
        "departure": None,
        "is_in_log": None,
        "is_prepared": False,
        "flushed_lsn": 2000,
        "commit_lsn": 2000,
    }
    return outcome_of(Evidence(**(facts | others), xid_status=status))


def on(tli: int, *left: tuple[int, int]) -> Led:
    return Led(NODE, 1000, history(tli, *left), START_US)


@pytest.mark.parametrize("status", XidStatus)
def test_in_the_limbo_is_pending(status: XidStatus) -> None:
    assert answer(status, is_prepared=True).fate is PENDING


@pytest.mark.parametrize("status", XidStatus)
def test_there_is_no_answer_before_the_term_start(status: XidStatus) -> None:
    assert answer(status, led=Led(NODE, 2001, history(), START_US)).fate is PENDING


def test_in_progress_is_pending() -> None:
    assert answer(XidStatus.IN_PROGRESS).fate is PENDING


# ---- an end that was seen


@pytest.mark.parametrize("fate", [COMMITTED, ROLLED_BACK])
@pytest.mark.parametrize("status", XidStatus)
def test_an_end_that_was_seen(fate: Fate, status: XidStatus) -> None:
    departure = Departure(fate, 701, 0, 1500)
    assert answer(status, departure=departure) == OutcomeAnswer(fate, 1500)
    assert answer(status, departure=departure, commit_lsn=1499) == OutcomeAnswer(PENDING, 1500)


def test_one_that_left_unseen_is_known_to_have_been_here() -> None:
    departure = Departure(UNKNOWN, 701, 0, None)
    seen = {"departure": departure, "is_in_log": True}
    assert answer(XidStatus.COMMITTED, **seen).fate is COMMITTED
    assert answer(XidStatus.ABORTED, **seen).fate is ROLLED_BACK


# ---- by its xid


@pytest.mark.parametrize("status", [XidStatus.ABORTED, XidStatus.FUTURE])
def test_an_abort_is_reported_when_the_quorum_has_all_that_was_flushed_then(
    status: XidStatus,
) -> None:
    assert answer(status, commit_lsn=1999) == OutcomeAnswer(PENDING, 2000)
    assert answer(status, commit_lsn=2000) == OutcomeAnswer(ROLLED_BACK, 2000)


def test_a_commit_of_a_prepare_that_was_flushed_here() -> None:
    assert answer(XidStatus.COMMITTED, lsn=1200) == OutcomeAnswer(COMMITTED, 2000)
    assert answer(XidStatus.COMMITTED, is_in_log=True) == OutcomeAnswer(COMMITTED, 2000)
    assert answer(XidStatus.COMMITTED, lsn=1200, commit_lsn=1999).fate is PENDING


def test_a_commit_may_be_a_strangers() -> None:
    """The primary has crashed, lost unflushed WAL, and assigned the xid again."""
    assert answer(XidStatus.COMMITTED).fate is UNKNOWN


@pytest.mark.parametrize("lsn", [0, 1200])
def test_a_commit_on_another_server_of_that_timeline_may_be_a_strangers(lsn: int) -> None:
    """Both were promoted from one log: it assigned the same xid, at the same position."""
    gid = gid_of(begin_lsn=1100, start_us=START_US + 1)
    asked: dict[str, Any] = {"gid": gid, "lsn": lsn}
    assert answer(XidStatus.COMMITTED, **asked).fate is UNKNOWN
    assert answer(XidStatus.COMMITTED, **asked, is_in_log=True).fate is COMMITTED
    assert answer(XidStatus.COMMITTED, **asked, is_in_log=False).fate is ROLLED_BACK
    assert answer(XidStatus.COMMITTED, **asked, is_in_log=False, commit_lsn=1999).fate is PENDING


@pytest.mark.parametrize("lsn", [1, 1100, 2001])
def test_a_bound_that_cannot_be_is_none(lsn: int) -> None:
    assert answer(XidStatus.COMMITTED, lsn=lsn).fate is UNKNOWN


def test_an_xid_that_is_too_old() -> None:
    assert answer(XidStatus.TOO_OLD, lsn=1200).fate is UNKNOWN


# ---- by its timeline


@pytest.mark.parametrize("status", XidStatus)
def test_a_timeline_left_at_or_below_its_begin(status: XidStatus) -> None:
    for left_lsn in (900, 1100):
        found = answer(status, led=on(2, (1, left_lsn)), lsn=1200)
        assert found.fate is ROLLED_BACK


def test_a_timeline_left_between_its_begin_and_its_end() -> None:
    """The log has the transaction's rows, maybe its PREPARE."""
    led = on(2, (1, 1150))
    assert answer(XidStatus.ABORTED, led=led, lsn=1200).fate is ROLLED_BACK
    assert answer(XidStatus.IN_PROGRESS, led=led, lsn=1200).fate is PENDING
    assert answer(XidStatus.COMMITTED, led=led, lsn=1200).fate is UNKNOWN
    assert answer(XidStatus.COMMITTED, led=led, lsn=1150).fate is UNKNOWN
    assert answer(XidStatus.COMMITTED, led=led, lsn=1150, is_in_log=True).fate is COMMITTED


def test_there_is_no_answer_before_the_quorum_has_a_byte_of_the_timeline() -> None:
    led = on(2, (1, 1100))
    assert answer(led=led, commit_lsn=1100).fate is PENDING
    assert answer(led=led, commit_lsn=1101) == OutcomeAnswer(ROLLED_BACK, 1101)


@pytest.mark.parametrize("status", XidStatus)
def test_a_branch_that_the_log_was_never_on(status: XidStatus) -> None:
    gid = gid_of(begin_lsn=1100, tli=2)
    assert answer(status, gid=gid, led=on(3, (1, 1500)), lsn=1200).fate is ROLLED_BACK


@pytest.mark.parametrize("status", XidStatus)
def test_a_newer_timeline_than_this_primary_has(status: XidStatus) -> None:
    gid = gid_of(begin_lsn=1100, tli=3)
    assert answer(status, gid=gid, led=on(2, (1, 900))).fate is UNKNOWN


def test_a_timeline_whose_ancestors_are_not_known() -> None:
    assert answer(led=on(2)).fate is UNKNOWN
