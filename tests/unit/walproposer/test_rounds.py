"""Rounds are answered only by what a quorum has taken since, however answers are shared."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from leader_world import World
from proposer_steps import PRIMARY, candidacy, greet, of_kind, vote
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import (
    Append,
    AppendResponse,
    Configure,
    Elected,
    Follow,
    ProposerMessage,
)
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.walproposer.chain_rule import ChainRule
from quorum_wal.walproposer.stream import leader as leader_module
from quorum_wal.walproposer.stream import rounds
from quorum_wal.walproposer.stream.events import (
    Action,
    Event,
    PeerLost,
    PeerMessage,
    RoundAnswered,
    RoundWanted,
    Send,
    Tick,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer, State
from quorum_wal.walproposer.stream.rounds import Mark, Rounds
from tests.steady_proposer import SteadyProposer

SEEDS = range(60)
STEPS = 400
PEERS = (0, 1, 2)

Taken = tuple[int, AppendResponse]


@dataclass
class Follower:
    """A safekeeper as its proposer sees it: it takes messages in batches, and answers each batch
    once. Times are steps of the test."""

    inbox: list[ProposerMessage] = field(default_factory=list)
    answers: list[Taken] = field(default_factory=list)
    durable_lsn: int = START_LSN
    #: When the last answer that was delivered had been made.
    shown_at: int = -1

    def take(self, count: int, now: int, node_id: NodeId | None) -> None:
        assert node_id is not None
        batch, self.inbox = self.inbox[:count], self.inbox[count:]
        for message in batch:
            if isinstance(message, Append) and message.wal:
                assert message.begin_lsn == self.durable_lsn
                self.durable_lsn = message.end_lsn
        if batch:
            lsn = self.durable_lsn
            self.answers.append((now, AppendResponse(1, node_id, lsn, lsn, START_LSN)))


class Model:
    """A leader of three members with occasional rounds; `begun`: when each began."""

    def __init__(self, seed: int, make: Callable[..., Proposer] = Proposer) -> None:
        self.rng = random.Random(seed)
        self.proposer = make(candidacy(3), PRIMARY)
        self.log = WalLog()
        self.world = World(self.proposer, self.log)
        self.followers = [Follower() for _ in PEERS]
        self.now = self.ticks = 0
        self.begun: dict[int, int] = {}
        self.answered: list[int] = []
        for peer in PEERS:
            greet(self.proposer, peer)
        for peer in PEERS:
            self.do(lambda p=peer: vote(self.proposer, p, self.log.lsn))
        self.step(UpstreamStarted(self.log.lsn))
        assert self.proposer.state is State.LEADING

    @property
    def rounds(self) -> Rounds:
        assert self.proposer.leader is not None
        return self.proposer.leader.rounds

    def step(self, event: Event) -> None:
        self.do(lambda: self.proposer.step(event))

    def do(self, call: Callable[[], list[Action]]) -> None:
        self.now += 1
        for action in call():
            if isinstance(action, Send) and isinstance(
                action.message, Elected | Append | Configure | Follow
            ):
                self.followers[action.peer].inbox.append(action.message)
            elif isinstance(action, RoundAnswered):
                self.check(action.number)
        if self.proposer.leader is not None:
            self.begun.setdefault(self.rounds.number, self.now)

    def check(self, number: int) -> None:
        self.answered.append(number)
        begun = self.begun[number]
        ids = {p + 1 for p in PEERS if self.followers[p].shown_at >= begun}
        membership = self.proposer.membership
        assert membership is not None
        assert has_quorum(membership, ids), f"round {number} began at {begun}, at {self.now}"

    # ---- what may happen

    def deliver(self, peer: int) -> None:
        follower = self.followers[peer]
        if follower.answers:
            follower.shown_at, response = follower.answers.pop(0)
            self.step(PeerMessage(peer, response))

    def take(self, peer: int) -> None:
        self.now += 1
        count = self.rng.choice([1, 1, 2, 5])
        self.followers[peer].take(count, self.now, self.proposer.node_id)

    def write(self, _: int) -> None:
        begin_lsn = self.log.lsn
        wal = self.log.append("R", self.rng.choice([50, 5000]))
        self.step(WalReceived(begin_lsn, wal))

    def want(self, _: int) -> None:
        self.step(RoundWanted())

    def tick(self, _: int) -> None:
        self.ticks += 1
        self.step(Tick(self.ticks * 100))

    def lose(self, peer: int) -> None:
        """Lose the connection with the messages in flight; it reconnects at once."""
        if sum(p.is_following for p in self.proposer.peers) < len(PEERS):
            return
        follower = self.followers[peer]
        follower.inbox.clear()
        follower.answers.clear()
        if isinstance(self.proposer, SteadyProposer):
            self.proposer.end_steady()
        self.step(PeerLost(peer, "the test says so"))
        self.do(lambda: self.world.rejoin(peer, follower.durable_lsn))

    def play(self) -> None:
        happenings = (self.take, self.deliver, self.write, self.want, self.tick, self.lose)
        weights = (8, 8, 3, 1, 1, self.rng.choice([0, 1]))
        for _ in range(STEPS):
            (happen,) = self.rng.choices(happenings, weights)
            happen(self.rng.choice(PEERS))

    def settle(self) -> None:
        """Everything is taken and answered, one by one, until there is nothing more."""
        for _ in range(10):
            self.tick(0)
            while any(follower.inbox or follower.answers for follower in self.followers):
                for peer in PEERS:
                    self.followers[peer].take(1, self.now, self.proposer.node_id)
                    self.deliver(peer)
        if isinstance(self.proposer, SteadyProposer):
            self.proposer.end_steady()


@pytest.mark.parametrize("make", [Proposer, SteadyProposer])
@pytest.mark.parametrize("seed", SEEDS)
def test_only_what_was_taken_since_it_began_answers_a_round(
    seed: int, make: Callable[..., Proposer]
) -> None:
    model = Model(seed, make)
    model.play()
    model.settle()
    assert not model.rounds.is_open
    assert model.answered == [*range(1, model.rounds.number + 1)]


@pytest.mark.parametrize(
    ("what", "name", "bug"),
    [
        (Mark, "is_passed_by", lambda mark, p, _: p.taken_count >= mark.count - 1),
        (Mark, "is_passed_by", lambda mark, p, lsn: lsn >= mark.end_lsn),
        (leader_module, "count_answer", lambda p, _: setattr(p, "taken_count", p.sent_count)),
        (rounds, "has_quorum", lambda *_: True),
    ],
    ids=["the answer before", "WAL of before", "an answer for all", "an answer of one"],
)
def test_a_planted_bug_is_seen(
    monkeypatch: pytest.MonkeyPatch, what: object, name: str, bug: object
) -> None:
    monkeypatch.setattr(what, name, bug)

    def play_all() -> None:
        for seed in SEEDS:
            Model(seed).play()

    with pytest.raises(AssertionError, match="round"):
        play_all()


# ---- one by one


def idle() -> Model:
    """All have answered everything."""
    model = Model(0)
    model.settle()
    return model


def test_a_round_of_an_idle_log_takes_one_heartbeat_each() -> None:
    model = idle()
    model.want(0)
    assert [len(follower.inbox) for follower in model.followers] == [1, 1, 1]
    for peer in (0, 1):
        model.take(peer)
        model.deliver(peer)
    assert model.answered == [1]
    assert not model.rounds.is_open


def test_a_request_during_a_round_gets_the_next_one() -> None:
    model = idle()
    model.want(0)
    model.want(0)
    model.want(0)
    assert model.rounds.number == 1
    model.settle()
    assert model.answered == [1, 2]


def test_without_a_quorum_it_stays_open_and_a_reconnected_peer_answers_it() -> None:
    model = idle()
    for peer in (1, 2):
        model.step(PeerLost(peer, "gone"))
        model.followers[peer].inbox.clear()
    model.want(0)
    model.take(0)
    model.deliver(0)
    model.tick(0)
    assert model.answered == []
    follower = model.followers[1]
    model.do(lambda: model.world.rejoin(1, follower.durable_lsn))
    model.tick(0)
    model.settle()
    assert model.answered == [1]


def test_there_is_no_round_before_the_election() -> None:
    proposer = Proposer(candidacy(3), PRIMARY)
    assert proposer.step(RoundWanted()) == []


def test_of_one_that_is_chained_only_new_wal_shows_anything() -> None:
    """Its answers may be to the WAL from the chain. And it is not asked repeatedly."""
    chains = ChainRule({2: 1, 3: 1})
    proposer = Proposer(replace(candidacy(3), chains=chains), PRIMARY)
    world = World(proposer, WalLog())
    for peer in PEERS:
        greet(proposer, peer)
    for peer in PEERS:
        vote(proposer, peer, world.position)
    proposer.step(UpstreamStarted(world.position))
    world.write(100)
    world.answer(*PEERS)
    proposer.step(Tick(100))
    actions = proposer.step(RoundWanted())
    assert len(of_kind(actions, Send)) == 3
    for _ in range(5):
        assert of_kind(world.answer(1, 2), Send) == []
    assert of_kind(world.answer(0), RoundAnswered) == []
    world.write(100)
    assert of_kind(world.answer(0, 1), RoundAnswered) == [RoundAnswered(1)]
