"""Which member is chained behind which, what it is sent then, and when the chain ends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from importlib import import_module

import pytest
from leader_world import World, appends_to
from proposer_steps import OURS, PRIMARY, candidacy, greet, members, sent, vote
from wal_log import WalLog

from quorum_wal.consensus.messages import Follow
from quorum_wal.walproposer.chain_rule import ChainRule
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.stream.candidacy import Candidacy
from quorum_wal.walproposer.stream.chains import LATE_MS, RETRY_DOUBLINGS_MAX, RETRY_MS
from quorum_wal.walproposer.stream.events import (
    Action,
    ClosePeer,
    PeerLost,
    ReportFlushed,
    Tick,
    UpstreamStarted,
)
from quorum_wal.walproposer.stream.progress import PeerState
from quorum_wal.walproposer.stream.proposer import Proposer
from tests.steady_proposer import SteadyProposer

SITES = members((1, 2, 3, 4, 5))
SITES = replace(
    SITES,
    roster=tuple(
        replace(m, site=site)
        for m, site in zip(SITES.roster, ("a", "a", "b", "b", ""), strict=True)
    ),
)


NewProposer = Callable[[Candidacy, Primary], Proposer]


class ChainWorld(World):
    """3 is chained behind 2; peer i is safekeeper i + 1."""

    def __init__(self, rule: ChainRule, proposer: NewProposer = Proposer) -> None:
        super().__init__(proposer(replace(candidacy(3), chains=rule), PRIMARY), WalLog())
        self.now_ms = 0
        for peer in (0, 1, 2):
            greet(self.proposer, peer)
        for peer in (0, 1, 2):
            vote(self.proposer, peer, self.log.lsn)
        self.proposer.step(UpstreamStarted(self.log.lsn))

    def tick(self, milliseconds: int = 100) -> list[Action]:
        self.now_ms += milliseconds
        return self.proposer.step(Tick(self.now_ms))

    def stay(self, milliseconds: int) -> None:
        """All answer, and nothing changes."""
        end_ms = self.now_ms + milliseconds
        while self.now_ms < end_ms:
            self.answer(0, 1, 2)
            self.tick()

    def wait_for_chain(self) -> int:
        """The time at which 3 is chained."""
        while self.state(2) is not PeerState.CHAINED:
            self.answer(0, 1, 2)
            self.tick()
        return self.now_ms

    def end_chain(self) -> int:
        """It cannot take WAL, and is streamed to; the time of that."""
        self.wait_for_chain()
        self.proposer.step(PeerLost(2, "could not take WAL"))
        self.rejoin(2, self.position)
        self.tick()
        return self.now_ms

    def state(self, peer: int) -> PeerState:
        return self.proposer.peers[peer].state


@pytest.fixture
def world() -> ChainWorld:
    """All have the whole log; the next tick begins chains."""
    world = ChainWorld(ChainRule({3: 2}))
    world.write(100)
    world.answer(0, 1, 2)
    return world


def test_a_complete_member_gets_follow_and_then_the_end_of_the_log(world: ChainWorld) -> None:
    end_lsn = world.position
    actions = world.tick()
    assert sent(actions, Follow) == [(2, Follow(1, OURS, "sk2", 5454))]
    assert world.state(2) is PeerState.CHAINED
    actions = world.write(200)
    (news,) = appends_to(actions, 2)
    assert (bytes(news.wal), news.record_end_lsn) == (b"", world.position)
    assert [len(m.wal) for m in appends_to(actions, 1)] == [world.position - end_lsn]


def test_its_answers_count_for_a_commit(world: ChainWorld) -> None:
    world.tick()
    world.write(200)
    world.answer(0)
    assert ReportFlushed(world.position) in world.answer(2)


def test_a_member_that_lacks_wal_or_has_not_answered_is_not_chained() -> None:
    world = ChainWorld(ChainRule({3: 2}))
    world.write(100)
    world.answer(0, 1)
    assert sent(world.tick(), Follow) == []
    world.answer(2)
    assert sent(world.tick(), Follow)


def test_the_source_must_have_answered() -> None:
    """Otherwise its Elected may not have cut its tail yet."""
    world = ChainWorld(ChainRule({3: 2}))
    world.write(100)
    world.answer(0, 2)
    assert sent(world.tick(), Follow) == []


def test_a_lost_source_ends_the_chain_with_the_next_tick(world: ChainWorld) -> None:
    world.tick()
    world.proposer.step(PeerLost(1, "gone"))
    (close,) = [a for a in world.tick() if isinstance(a, ClosePeer)]
    assert close.peer == 2
    assert "safekeeper 2, no longer streams" in close.reason


def test_one_that_is_late_behind_its_source_is_taken_back(world: ChainWorld) -> None:
    world.tick()
    world.write(100)
    world.answer(0, 1)
    actions = []
    for _ in range(LATE_MS // 100 + 2):
        assert not actions
        actions = [a for a in world.tick() if isinstance(a, ClosePeer)]
    assert [a.peer for a in actions] == [2]
    assert "late behind its source" in actions[0].reason


def test_a_source_that_moves_by_no_byte_is_late(world: ChainWorld) -> None:
    world.tick()
    world.write(100)
    world.answer(0)
    closed = [a for _ in range(LATE_MS // 100 + 2) for a in world.tick() if type(a) is ClosePeer]
    assert [a.peer for a in closed] == [2]
    assert "its source, safekeeper 2, is late" in closed[0].reason


def test_a_source_that_moves_is_not_late_though_it_owes(world: ChainWorld) -> None:
    """A bulk load: to send it twice would make it later."""
    world.tick()
    world.write(*[100] * 40)
    begin_lsn = world.proposer.peers[1].durable_lsn
    for step in range(1, 40):
        world.answer(1, 2, lsn=begin_lsn + step * 100)
        assert not [a for a in world.tick() if isinstance(a, ClosePeer)]


def test_a_member_whose_chain_ended_reconnects_at_once(world: ChainWorld) -> None:
    """It works correctly, and commits may wait for it."""
    world.tick()
    world.proposer.step(PeerLost(1, "gone"))
    assert [a.at_once for a in world.tick() if isinstance(a, ClosePeer)] == [True]


def test_an_idle_chain_stays(world: ChainWorld) -> None:
    world.tick()
    for _ in range(50):
        world.answer(0, 1, 2)
        assert not [a for a in world.tick() if isinstance(a, ClosePeer)]
    assert world.state(2) is PeerState.CHAINED


def test_a_chain_that_ended_is_tried_again_later(world: ChainWorld) -> None:
    world.tick()
    world.proposer.step(PeerLost(2, "could not take WAL"))
    world.rejoin(2, world.position)
    world.answer(2)
    assert world.state(2) is PeerState.STREAMING
    assert sent(world.tick(), Follow) == []
    while world.now_ms < RETRY_MS:
        world.answer(0, 1, 2)
        assert sent(world.tick(), Follow) == []
    world.answer(0, 1, 2)
    assert sent(world.tick(200), Follow)


def test_a_chain_that_never_lasts_is_tried_ever_later(world: ChainWorld) -> None:
    """A wrong password costs a connection each time. After a chain that lasted, the count starts
    again."""
    waits = []
    for _ in range(RETRY_DOUBLINGS_MAX + 2):
        ended_ms = world.end_chain()
        waits.append(world.wait_for_chain() - ended_ms)
    doubled = [RETRY_MS << number for number in range(RETRY_DOUBLINGS_MAX)]
    assert waits == [*doubled, RETRY_MS << RETRY_DOUBLINGS_MAX, RETRY_MS << RETRY_DOUBLINGS_MAX]
    world.stay(RETRY_MS)
    ended_ms = world.end_chain()
    assert world.wait_for_chain() - ended_ms == RETRY_MS


def test_a_chained_member_is_not_a_source() -> None:
    world = ChainWorld(ChainRule({3: 2, 2: 1}))
    world.write(100)
    world.answer(0, 1, 2)
    assert [peer for peer, _ in sent(world.tick(), Follow)] == [1]
    world.answer(0, 1, 2)
    assert sent(world.tick(), Follow) == []


def test_sites_give_sources() -> None:
    """The first member of a site streams directly, the others may take from it; not at our site."""
    rule = ChainRule(site="a", by_sites=True)
    assert [rule.sources_of(i, SITES) for i in (1, 2, 3, 4)] == [(), (), (3, 4), (3, 4)]
    assert ChainRule({4: 1}, "a", True).sources_of(4, SITES) == (1,)
    assert ChainRule().sources_of(4, SITES) == ()


def test_a_rule_that_matches_no_member_is_reported() -> None:
    """`--site` is that of the proposer, and members may be at the same site."""
    assert ChainRule({4: 3}, "a", True).problems(SITES) == []
    assert ChainRule({9: 3, 4: 7}).problems(SITES) == [
        "safekeeper 9 of --via 9=3 is not a member",
        "safekeeper 7 of --via 4=7 is not a member",
    ]
    assert ChainRule({}, "A", True).problems(SITES) == [
        'no member is at site "A"; the sites are: a, b'
    ]


@pytest.mark.parametrize("how", ["steady_leader", "steady_leader_compiled"])
def test_the_steady_path_sends_and_reports_what_the_general_one_does(how: str) -> None:
    """Also to the chained member, whose answers count."""
    rule = ChainRule({3: 2})
    general = ChainWorld(rule)
    leader_class = import_module(f"quorum_wal.walproposer.stream.{how}").SteadyLeader
    taken: list[str] = []
    steady = ChainWorld(
        rule,
        lambda who, primary: SteadyProposer(
            who, primary, leader_class, taken=lambda: taken.append("an event")
        ),
    )
    for world in (general, steady):
        world.write(100)
        world.answer(0, 1, 2)
        world.tick()
        assert world.state(2) is PeerState.CHAINED
    for peers in ((0, 2), (1, 2), (2, 0), (0, 1, 2)):
        assert steady.write(200) == general.write(200)
        for peer in peers:
            assert steady.answer(peer) == general.answer(peer)
    assert steady.proposer.commit_lsn == general.proposer.commit_lsn == steady.position
    assert len(taken) > 4, "the steady path took next to nothing"
    assert steady.tick() == general.tick()
    assert steady.proposer.peers[2].next_lsn == general.proposer.peers[2].next_lsn
