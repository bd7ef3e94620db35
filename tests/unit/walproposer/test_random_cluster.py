"""The cores keep the law in random runs, and the runs are wild enough to show it when they do not.

A failing run is repeated by its test id, which names the seed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import memory_node
import pytest
from random_cluster import RandomCluster

import safekeeper.acceptor
import walproposer.leader
import walproposer.proposer
from consensus.messages import Elected, VoteRequest, VoteResponse
from consensus.quorum import quorum_lsn
from consensus.term_history import TermHistory
from safekeeper.acceptor import Acceptor
from safekeeper.events import Action, FlushWal, PersistControl
from walproposer.events import Action as ProposerAction
from walproposer.progress import Progress
from walproposer.proposer import Proposer

pytestmark = pytest.mark.usefixtures("small_limits")

STEPS = 1200
SEEDS = range(100)
#: A planted bug must show itself in so many runs.
RUNS_TO_CATCH_MAX = 300


def nodes_count_of(seed: int) -> int:
    return 3 if seed % 2 else 5


@pytest.mark.parametrize("nodes_count", [3, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_the_invariants_hold_after_every_step(seed: int, nodes_count: int) -> None:
    RandomCluster(seed, nodes_count).run(STEPS)


def test_the_runs_do_what_they_are_for() -> None:
    """Elections, commits, truncations, losses and catch-ups happen, or nothing was proven."""
    totals: dict[str, int] = {}
    for seed in range(20):
        run = RandomCluster(seed, nodes_count_of(seed))
        run.run(STEPS)
        for what, happened in run.counts().items():
            totals[what] = totals.get(what, 0) + happened
    assert min(totals.values()) >= 10, totals


# ---- planted bugs

Plant = Callable[[pytest.MonkeyPatch], None]


def without(kind: type[Action], step: Callable[..., list[Action]]) -> Callable[..., list[Action]]:
    """The same step of an acceptor that forgets to order one kind of action."""
    return lambda *args: [action for action in step(*args) if not isinstance(action, kind)]


def commit_rule_without_term_start(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        walproposer.leader, "committed_lsn", lambda members, lsns, _: quorum_lsn(members, lsns)
    )


def donor_by_position_first(patch: pytest.MonkeyPatch) -> None:
    def choose(votes: dict[int, VoteResponse]) -> int:
        return max(votes, key=lambda peer: (votes[peer].flush_lsn, votes[peer].last_log_node_id))

    patch.setattr(walproposer.proposer, "choose_donor", choose)


def votes_for_every_proposer_of_a_term(patch: pytest.MonkeyPatch) -> None:
    vote = Acceptor._vote

    def vote_by_term_alone(
        acceptor: Acceptor, connection: int, request: VoteRequest
    ) -> list[Action]:
        if request.node_id.term == acceptor.control.promised.term:
            acceptor.control = replace(acceptor.control, promised=request.node_id)
        return vote(acceptor, connection, request)

    patch.setattr(Acceptor, "_vote", vote_by_term_alone)


def tails_are_not_truncated(patch: pytest.MonkeyPatch) -> None:
    """Both sides stream from the start of the term, whatever lies below it."""

    def from_term_start(proposer: TermHistory, _: TermHistory, flush_lsn: int) -> int:
        return min(proposer.entries[-1].start_lsn, flush_lsn)

    patch.setattr(walproposer.leader, "highest_common_point", from_term_start)
    patch.setattr(safekeeper.acceptor, "highest_common_point", from_term_start)


def truncation_never_reaches_the_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(memory_node.MemoryDisk, "_cut", lambda disk, end_lsn: None)


def answers_before_the_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acceptor, "_flush", without(FlushWal, Acceptor._flush))


def votes_without_a_flush(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acceptor, "_vote", without(FlushWal, Acceptor._vote))


def promises_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Acceptor, "_vote", without(PersistControl, Acceptor._vote))


def history_not_adopted(patch: pytest.MonkeyPatch) -> None:
    elected = Acceptor._elected

    def elected_only(acceptor: Acceptor, connection: int, message: Elected) -> list[Action]:
        history = acceptor.control.term_history
        actions = elected(acceptor, connection, message)
        acceptor.control = replace(acceptor.control, term_history=history)
        return [
            a if not isinstance(a, PersistControl) else PersistControl(acceptor.control)
            for a in actions
        ]

    patch.setattr(Acceptor, "_elected", elected_only)


def votes_count_as_answers(patch: pytest.MonkeyPatch) -> None:
    vote = Proposer._vote

    def vote_and_count(
        proposer: Proposer, progress: Progress, message: VoteResponse
    ) -> list[ProposerAction]:
        actions = vote(proposer, progress, message)
        progress.flush_lsn = max(progress.flush_lsn, message.flush_lsn)
        return actions

    patch.setattr(Proposer, "_vote", vote_and_count)


def flush_inside_a_record(patch: pytest.MonkeyPatch) -> None:
    flush = Acceptor._flush

    def flush_everything(acceptor: Acceptor) -> list[Action]:
        actions = flush(acceptor)
        acceptor.flush_lsn = acceptor.record_end_lsn = acceptor.durable_lsn
        return actions

    patch.setattr(Acceptor, "_flush", flush_everything)


def catch_up_begins_inside_a_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Progress, "is_inside_record", False)


#: Each with a run from which on it is tried, so that those before are not waited for.
PLANTS: dict[Plant, int] = {
    commit_rule_without_term_start: 0,
    donor_by_position_first: 148,
    votes_for_every_proposer_of_a_term: 0,
    tails_are_not_truncated: 0,
    truncation_never_reaches_the_disk: 0,
    answers_before_the_flush: 0,
    votes_without_a_flush: 0,
    promises_in_memory_only: 0,
    history_not_adopted: 0,
    votes_count_as_answers: 0,
    flush_inside_a_record: 0,
    catch_up_begins_inside_a_record: 0,
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    for seed in range(PLANTS[plant], PLANTS[plant] + RUNS_TO_CATCH_MAX):
        try:
            RandomCluster(seed, nodes_count_of(seed)).run(STEPS)
        except Exception as caught:
            print(f"run {seed}: {type(caught).__name__}: {caught}")
            return
    pytest.fail(f"{RUNS_TO_CATCH_MAX} runs did not show it")
