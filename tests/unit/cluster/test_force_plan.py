"""A permanently lost quorum: which log survives, with which stamp, and when force is refused."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_pages import (
    HTTP,
    Answers,
    departed,
    emptied,
    instance,
    membership,
    node_id,
    page,
    safekeeper,
    silent,
)

from quorum_wal.cluster.force_plan import TERMS_AHEAD, plan_force, uninformed
from quorum_wal.consensus.ids import NodeId
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.timelines.discovery import SafekeeperReport

UUID = b"operator".ljust(16)


def holder(number: int, term: int = 5, flush: str = "0/2000000", **more: Any) -> SafekeeperReport:
    """It answers, and no proposer streams to it."""
    ends = {"last_log_node_id": node_id(term), "flush_lsn": flush}
    return safekeeper(number, **{"proposer": None, "damage": [], **ends, **more})


def answers(*reports: SafekeeperReport) -> Answers:
    return Answers(list(reports), {})


def test_the_only_survivor_continues() -> None:
    plan = plan_force(answers(silent(1), holder(2), silent(3)).view(), [1, 3], UUID)
    assert plan.membership.stamp.author == NodeId(5 + TERMS_AHEAD, UUID)
    assert plan.membership.stamp.generation == 2
    assert plan.membership.members == (2,)
    assert plan.membership.is_forced
    assert plan.membership.member(2).instance.hex() == instance(2)
    assert (plan.informed, plan.lost) == ((), (1, 3))
    assert plan.warning.splitlines() == [
        "Kept: the log of safekeeper 2 (10.0.0.2:5454) up to 0/2000000. It is known to be "
        "committed up to 0/2000000.",
        "Acknowledged commits above 0/2000000 may be missing or replaced. Those above 0/2000000 "
        "are lost, unless the old primary or a standby has them: run sk attach for that server.",
        "Safekeepers 1, 3 must never come back: together they would form a second log. Destroy "
        "their disks.",
    ]


def test_the_greatest_ballot_comes_before_the_greatest_position() -> None:
    five = {"membership": membership(1, 2, 3, 4, 5)}
    longer = holder(1, term=4, flush="0/3000000", commit_lsn="0/2800000", **five)
    newer = holder(2, term=5, **five)
    plan = plan_force(answers(longer, newer, silent(3)).view(), [3, 4, 5], UUID)
    assert plan.keeper.safekeeper_id == 2
    assert [member.safekeeper_id for member in plan.informed] == [1]
    assert str(plan.commit_lsn) == "0/2800000"


def test_its_stamp_is_above_all_known_stamps() -> None:
    """Those of promises, of authors, and of a safekeeper that has left."""
    five = {"membership": membership(1, 2, 3, 4, 5, generation=4)}
    promised = holder(1, **five, promised=node_id(9))
    left = departed(8, membership=membership(1, 2, term=4, generation=7), promised=node_id(12))
    plan = plan_force(answers(promised, holder(2, **five), left).view(), [3, 4, 5], UUID)
    assert plan.membership.stamp.author.term == 12 + TERMS_AHEAD
    assert plan.membership.stamp.generation == 8


REFUSED: list[tuple[Answers, list[int], str, str]] = [
    (answers(holder(1), holder(2), silent(3)), [3], "a quorum of the members answers", "replace"),
    (answers(silent(1), holder(2), silent(3)), [1], "3 .* is unreachable", "force 1 3"),
    (answers(silent(1), holder(2), silent(3)), [1, 2, 3], "2 answers", "leave it out"),
    (answers(silent(1), holder(2), silent(3)), [1, 3, 7], "7 is not a member", ""),
    (answers(silent(1), safekeeper(2), silent(3)), [1, 3], "streams to safekeeper 2", "Stop it"),
    (answers(emptied(1), holder(2), silent(3)), [3], "1 .* lost its data", "force 1 3"),
    (
        answers(holder(1, state="stopped", stopped_reason="full"), holder(2), silent(3)),
        [3],
        "safekeeper 1 .* is stopped .full.",
        "may have the missing WAL",
    ),
    (
        answers(holder(1, damage=["a hole"]), holder(2), silent(3)),
        [3],
        "safekeeper 1 .* is damaged",
        "Start it",
    ),
    (
        answers(holder(1, damage=["a hole"]), silent(2), silent(3)),
        [1, 2, 3],
        "no safekeeper that answers has a usable log",
        "sk restore",
    ),
]


@pytest.mark.parametrize(("found", "destroyed", "reason", "hint"), REFUSED)
def test_what_is_refused(found: Answers, destroyed: list[int], reason: str, hint: str) -> None:
    with pytest.raises(Refusal, match=reason) as caught:
        plan_force(found.view(), destroyed, UUID)
    assert hint in caught.value.hint


def test_a_running_proposer_that_does_not_stream_prevents_it() -> None:
    last = {"address": "10.0.0.9:40000", "http": HTTP}
    found = answers(silent(1), holder(2, last_proposer=last), silent(3))
    found.pages = {HTTP: page(state="connecting")}
    with pytest.raises(Refusal, match="runs for this timeline"):
        plan_force(found.view(), [1, 3], UUID)


def test_a_quorum_of_both_sets_is_needed() -> None:
    """Of 1, 2, 3 two answer; of 3, 4, 5 one does."""
    joint = {"membership": membership(1, 2, 3, new=(3, 4, 5))}
    found = answers(holder(1, **joint), holder(2, **joint), silent(3), silent(4), silent(5))
    assert plan_force(found.view(), [3, 4, 5], UUID).membership.members in ((1,), (2,))


def test_after_a_crash_the_others_are_informed() -> None:
    alone = {"membership": membership(2, term=1 << 20, generation=2), "forced": True}
    view = answers(holder(1), holder(2, **alone), silent(3)).view()
    assert [other.safekeeper_id for other in uninformed(view)] == [1]
    informed = holder(1, membership=alone["membership"])
    assert uninformed(answers(informed, holder(2, **alone)).view()) == []
    assert uninformed(answers(holder(1), holder(2), silent(3)).view()) == []
