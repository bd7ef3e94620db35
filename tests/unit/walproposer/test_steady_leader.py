"""The steady path of a leader does the same as the general one: the same Appends, reports and
state.

Both get the same WAL and answers, with unexpected ones among them, and events in between.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from leader_world import World, wal_of
from msgspec import structs
from proposer_steps import PRIMARY, ballot, candidacy, greet, sent, vote
from wal_log import PAGE_SIZE, START_LSN, WalLog

from quorum_wal.consensus.messages import AppendResponse, Elected, HotStandbyFeedback
from quorum_wal.walproposer.stream import steady_leader
from quorum_wal.walproposer.stream.events import (
    PeerLost,
    PeerMessage,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer, State
from quorum_wal.walproposer.stream.steady_leader import SteadyLeader
from tests.steady_proposer import SteadyProposer

PEERS = st.integers(0, 2)
LENGTHS = st.sampled_from([32, 100, 500, 3000, 20_000])
#: How far behind the end of the log an answer is, in records.
BEHIND = st.integers(0, 2)
ODDITIES = ("of a greater ballot", "of a lower ballot", "of another generation", "feedback")
ODDITIES += ("of more than was sent",)
EVENTS = ("lost", "back", "tick", "page", "later tick")
WRITES = st.lists(LENGTHS, min_size=1, max_size=3)
ANSWERS = st.tuples(PEERS, BEHIND, st.sampled_from([None] * 40 + list(ODDITIES)))
STEPS = st.integers(0, 15).flatmap(
    lambda n: st.sampled_from(EVENTS) if n == 0 else WRITES if n < 5 else ANSWERS
)
SCRIPTS = st.lists(STEPS, min_size=20, max_size=60)


class Play:
    """A leader, its followers, and its output."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer = proposer
        self.log = WalLog()
        self.world = World(proposer, self.log)
        self.now_ms = 0
        self.said: list[object] = []
        for peer in (0, 1):
            greet(proposer, peer)
        for peer in (0, 1):
            vote(proposer, peer, self.log.lsn)
        proposer.step(UpstreamStarted(self.log.lsn))
        assert proposer.state is State.LEADING

    def step(self, event: Any) -> None:
        self.said.append(self.proposer.step(event))

    def do(self, step: Any) -> None:
        if self.proposer.state is State.STOPPED:
            return
        if isinstance(step, list):
            begin_lsn = self.log.lsn
            for length in step:
                self.log.append("R", length)
            self.step(WalReceived(begin_lsn, self.log.read(begin_lsn, self.log.lsn)))
        elif isinstance(step, tuple):
            self.answer(*step)
        else:
            self.happen(step)

    def answer(self, peer: int, behind: int, oddity: str | None) -> None:
        assert self.proposer.node_id is not None
        ends = [START_LSN, *self.log.ends][-1 - behind :]
        response = AppendResponse(1, self.proposer.node_id, ends[0], ends[-1], ends[0])
        if oddity == "feedback":
            feedback = HotStandbyFeedback(self.now_ms, 7, 0, 0, 0)
            response = structs.replace(response, feedback=feedback)
        elif oddity == "of more than was sent":
            response = structs.replace(response, durable_lsn=ends[-1] + 64)
        elif oddity == "of another generation":
            response = structs.replace(response, generation=2)
        elif oddity is not None:
            response = structs.replace(response, node_id=ballot(9 if "greater" in oddity else 0))
        self.step(PeerMessage(peer, response))

    def happen(self, event: str) -> None:
        if event == "lost":
            self.step(PeerLost(0, "the test says so"))
        elif event == "page":
            self.write_to_page_end()
        elif event == "back":
            if isinstance(self.proposer, SteadyProposer):
                self.proposer.end_steady()
            for peer, progress in enumerate(self.proposer.peers):
                if not progress.is_following and self.proposer.state is State.LEADING:
                    actions = self.world.rejoin(peer, progress.flush_lsn or START_LSN)
                    # How the window is cut into Appends is not the same; where they end is.
                    self.said.append(sent(actions, Elected))
        else:
            self.now_ms += 1000 if event == "later tick" else 100
            self.step(Tick(self.now_ms))

    def write_to_page_end(self) -> None:
        """A record that goes on behind the page's end, shipped in two."""
        begin_lsn = self.log.lsn
        page_lsn = begin_lsn - begin_lsn % PAGE_SIZE + PAGE_SIZE
        self.log.append("R", page_lsn - begin_lsn + 100)
        self.step(WalReceived(begin_lsn, self.log.read(begin_lsn, page_lsn)))
        self.step(WalReceived(page_lsn, self.log.read(page_lsn, self.log.lsn)))

    def state(self) -> dict[str, Any]:
        leader = self.proposer.leader
        assert leader is not None
        window = leader.window
        return {
            "peers": self.proposer.peers,
            "commit_lsn": leader.commit_lsn,
            "window": (window.begin_lsn, window.end_lsn, window.record_end_lsn),
            "wal": wal_of(window),
            "boundary": vars(leader.boundary),
        }


def play(proposer: Proposer, script: list[Any]) -> tuple[list[object], dict[str, Any]]:
    played = Play(proposer)
    for step in script:
        played.do(step)
    if isinstance(proposer, SteadyProposer):
        proposer.end_steady()
    return played.said, played.state()


def compare(steady_class: type[SteadyLeader], *, is_patient: bool) -> int:
    """The number of events that took the steady path."""
    taken: list[None] = []

    @settings(max_examples=120, deadline=None, phases=[Phase.explicit, Phase.generate])
    @given(SCRIPTS)
    def compare_one(script: list[Any]) -> None:
        steady = SteadyProposer(
            candidacy(), PRIMARY, steady_class, lambda: taken.append(None), is_patient=is_patient
        )
        assert play(steady, script) == play(Proposer(candidacy(), PRIMARY), script)

    compare_one()
    return len(taken)


@pytest.fixture(params=["interpreted", "compiled"])
def steady_class(request: pytest.FixtureRequest) -> type[SteadyLeader]:
    if request.param == "interpreted":
        return SteadyLeader
    module = import_module("quorum_wal.walproposer.stream.steady_leader_compiled")
    return cast(type[SteadyLeader], module.SteadyLeader)


@pytest.mark.parametrize("is_patient", [True, False], ids=["for long", "for one event"])
def test_the_same_of_both(steady_class: type[SteadyLeader], is_patient: bool) -> None:
    assert compare(steady_class, is_patient=is_patient) > 600, "most went by the general path"


def test_one_that_has_more_than_it_was_sent_has_room(steady_class: type[SteadyLeader]) -> None:
    """A smaller number minus a greater one is below zero in Python, and large in C."""
    taken: list[None] = []
    proposer = SteadyProposer(
        candidacy(), PRIMARY, steady_class, lambda: taken.append(None), is_patient=True
    )
    played = Play(proposer)
    for step in ((0, 0, None), (1, 0, None), (0, 0, "of more than was sent")):
        played.do(step)
    before = len(taken)
    played.do([100])
    assert len(taken) == before + 1


def compared_after(monkeypatch: pytest.MonkeyPatch, what: Any, name: str, bug: Any) -> None:
    monkeypatch.setattr(what, name, bug)
    with pytest.raises((AssertionError, ExceptionGroup)):
        compare(SteadyLeader, is_patient=True)


def commit_of_one(steady: SteadyLeader) -> None:
    steady.commit_lsn = max(steady.commit_lsn, *steady.flush_lsns)


@pytest.mark.parametrize(
    ("what", "name", "bug"),
    [
        (SteadyLeader, "_advance_commit", commit_of_one),
        (steady_leader, "is_at", lambda *_: True),
        (steady_leader, "WAL_PAGE_SIZE", 1 << 40),
    ],
    ids=[
        "a commit without a quorum",
        "a stale ballot accepted",
        "a page's end taken for a record's",
    ],
)
def test_a_planted_bug_is_seen(
    monkeypatch: pytest.MonkeyPatch, what: Any, name: str, bug: Any
) -> None:
    compared_after(monkeypatch, what, name, bug)
