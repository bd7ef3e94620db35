"""Helpers to change the members of a leader: safekeeper n is at place n - 1, also a new one."""

from __future__ import annotations

from leader_world import World
from proposer_steps import (
    MEMBERS,
    answer,
    ballot,
    campaigning,
    greet,
    history,
    leading,
    member,
    members,
    of_kind,
    vote,
)
from wal_log import START_LSN, WalLog

from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.walproposer.stream.events import (
    Action,
    ChangeRequest,
    ChangeRequested,
    ChangeState,
    ChangeView,
    Join,
    Joined,
    Leave,
    PeerLost,
    Tick,
)
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.proposer import Proposer


def leader_of(proposer: Proposer) -> Leader:
    assert proposer.leader is not None
    return proposer.leader


def present(proposer: Proposer) -> Membership:
    assert proposer.membership is not None
    return proposer.membership


def leave(peer: int, proposer: Proposer) -> Leave:
    """The order to leave for the safekeeper at that place."""
    return Leave(peer, peer + 1, member(peer + 1).instance, present(proposer))


def view(proposer: Proposer) -> ChangeView:
    assert proposer.change is not None
    return proposer.change


def state(proposer: Proposer) -> ChangeState:
    return view(proposer).state


def sets(proposer: Proposer) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """`[generation members + new_members]`."""
    membership = present(proposer)
    return membership.generation, membership.members, membership.new_members


def ask(proposer: Proposer, *wanted: int | Member, generation: int | None = None) -> list[Action]:
    people = tuple(member(who) if isinstance(who, int) else who for who in wanted)
    membership = proposer.membership
    if generation is None:
        generation = membership.generation if membership is not None else 1
    return proposer.step(ChangeRequested(ChangeRequest(generation, people)))


class Change(World):
    """A leader of 1 2 3 that has an empty log on all of them, and a clock."""

    def __init__(
        self, peers: tuple[int, ...] = (0, 1, 2), membership: Membership = MEMBERS
    ) -> None:
        log = WalLog()
        super().__init__(leading(log, peers, membership), log)
        self.answer(*peers)
        self.now_ms = 0

    @classmethod
    def of(cls, proposer: Proposer, log: WalLog) -> Change:
        """For a leader that was elected elsewhere."""
        change = cls.__new__(cls)
        change.proposer, change.log, change.now_ms = proposer, log, 0
        return change

    @property
    def leader(self) -> Leader:
        return leader_of(self.proposer)

    def tick(self, ms: int = 1) -> list[Action]:
        self.now_ms += ms
        return self.proposer.step(Tick(self.now_ms))

    def pass_time(self, ms: int, *answering: int) -> list[Action]:
        """These answer every second."""
        actions: list[Action] = []
        while ms > 0:
            actions += self.tick(min(ms, 1000))
            actions += self.answer_last(*answering)
            ms -= 1000
        return actions

    def answer_last(self, *peers: int) -> list[Action]:
        """Answer again with the position of each, and the current membership on disk."""
        actions: list[Action] = []
        for peer in peers:
            actions += answer(self.proposer, peer, self.proposer.peers[peer].flush_lsn)
        return actions

    def inform(self, *peers: int) -> list[Action]:
        """They have Configure on disk, and no more WAL than before."""
        return self.answer_last(*peers)

    def lack(self, peer: int) -> list[Action]:
        return self.proposer.step(PeerLost(peer, "no such timeline", lost_data=True))

    def lose(self, peer: int) -> list[Action]:
        return self.proposer.step(PeerLost(peer, "gone"))

    def join(self, peer: int) -> list[Action]:
        """Asked, given the timeline, connected: it follows, and has not answered."""
        (join,) = of_kind(self.lack(peer), Join)
        assert join.peer == peer
        actions = self.proposer.step(Joined(peer))
        return actions + self.follow(peer, START_LSN)

    def follow(self, peer: int, flush_lsn: int) -> list[Action]:
        greet(self.proposer, peer)
        terms = self.leader.term.term_history.clipped(flush_lsn)
        return vote(self.proposer, peer, flush_lsn, term_history=terms)

    def begin(self, *wanted: int) -> None:
        """The new safekeepers follow; none of them has answered."""
        ask(self.proposer, *wanted)
        for number in set(wanted) - {1, 2, 3}:
            self.join(number - 1)

    def enter(self, *wanted: int) -> None:
        """Joint, and no safekeeper has answered since."""
        self.begin(*wanted)
        for number in sorted(set(wanted) - {1, 2, 3}):
            self.answer(number - 1)
        self.tick()
        assert present(self.proposer).is_joint
        assert state(self.proposer) is ChangeState.ENTERED


JOINT = members((1, 2, 3), (1, 4, 5), generation=4, author=ballot(1, "a"))


def found() -> Change:
    """The leader of a term whose start only 1 and 2 have; no safekeeper has answered it. 4 and 5
    are at places 3 and 4."""
    log = WalLog()
    log.append("R0")
    proposer = campaigning((0, 1, 3, 4), JOINT, primary=None, count=5)
    terms = history((ballot(1, "a"), START_LSN))
    for peer, lsn in ((0, log.lsn), (1, log.lsn), (3, START_LSN), (4, START_LSN)):
        vote(proposer, peer, lsn, term_history=terms)
    assert sets(proposer) == (4, (1, 2, 3), (1, 4, 5))
    assert present(proposer).stamp.author == proposer.node_id
    return Change.of(proposer, log)
