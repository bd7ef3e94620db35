"""The part before the election: the membership, the term and the votes of a proposer. Pure.

    greetings --> the greatest membership --> its addresses --> more greetings
    a quorum of each of its sets --> the term --> VoteRequest --> grants --> elected
                                                             \\-> refused: it has a greater one

Laws (`docs/protocol.md`): rule 1 of the proposer, finding; V2, a quorum of grants from each set. It
knows nothing of the primary, and nothing of the leader's work.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import ServerFacts, VoteResponse
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.walproposer.chain_rule import NO_CHAINS, ChainRule
from quorum_wal.walproposer.stream.election import fenced
from quorum_wal.walproposer.stream.events import Action
from quorum_wal.walproposer.stream.peer_set import PeerSet
from quorum_wal.walproposer.stream.progress import PeerState, Progress


@dataclass(frozen=True, slots=True)
class Candidacy:
    """The input of an incarnation.

    `addresses` of any present or former members; they report the current members. `learnt` are
    other addresses where a previous incarnation found a safekeeper. Those are dropped when no
    safekeeper answers there any more, `addresses` never. `predecessor` is the NodeId of the
    previous incarnation of the same process: if a safekeeper has promised a greater one, another
    proposer took over, and this one yields to it instead of taking the term back.
    """

    timeline: TimelineId
    server: ServerFacts
    addresses: tuple[tuple[str, int], ...]
    proposer_uuid: bytes
    predecessor: NodeId | None = None
    #: Which members take the WAL from another member, after the election.
    chains: ChainRule = NO_CHAINS
    learnt: tuple[tuple[str, int], ...] = ()


class Candidate:
    """`membership` is the greatest one seen; None before the first greeting."""

    def __init__(self, candidacy: Candidacy, peer_set: PeerSet) -> None:
        self.candidacy = candidacy
        self.membership: Membership | None = None
        self.node_id: NodeId | None = None
        self._peer_set = peer_set

    @property
    def ours(self) -> NodeId | None:
        """A proposer with a greater promise than this has taken over."""
        return self.node_id or self.candidacy.predecessor

    @property
    def votes(self) -> dict[int, VoteResponse]:
        """The grants that count, by place."""
        places = self._peer_set.places
        return {
            p.peer: p.vote for p in places if p.is_member and p.vote is not None and p.vote.granted
        }

    @property
    def is_elected(self) -> bool:
        """V2: by a quorum of each set."""
        if self.membership is None:
            return False
        places = self._peer_set.places
        return has_quorum(self.membership, {places[i].safekeeper_id or 0 for i in self.votes})

    def hear(self, membership: Membership) -> list[Action]:
        """Rule 1: adopt the greatest membership seen, and ask its addresses too. If its author is
        greater than our NodeId, that proposer was elected after us.

        Earlier grants stay valid: their safekeepers were asked with a lesser stamp, and would also
        grant with this one (V2).
        """
        if self.membership is not None and membership.stamp <= self.membership.stamp:
            self._peer_set.assign(self.membership)
            return []
        self.membership = membership
        if self.ours is not None and membership.stamp.author > self.ours:
            return [fenced(self.ours, membership.stamp.author, None)]
        self._peer_set.assign(membership)
        return self.reach()

    def reach(self) -> list[Action]:
        return self._peer_set.reach(self.membership.roster if self.membership is not None else ())

    def contradicts(self, membership: Membership) -> bool:
        """ConfigSafety: an equal stamp means an equal membership."""
        own = self.membership
        return own is not None and membership.stamp == own.stamp and membership != own

    def ask(self) -> list[Action]:
        """After each greeting: choose the term once a quorum has greeted, then request votes."""
        if self.membership is None:
            return []
        able = [p for p in self._greeted() if p.is_member and not p.has_left]
        for place in able:
            if self.ours is not None and place.promised > self.ours:
                return [fenced(self.ours, place.promised, place.safekeeper_id)]
        if self.node_id is None:
            if not has_quorum(self.membership, {p.safekeeper_id or 0 for p in able}):
                return []
            self.node_id = NodeId(self._greatest_term() + 1, self.candidacy.proposer_uuid)
        return [p.request_vote(self.membership.stamp, self.node_id) for p in able]

    def _greeted(self) -> list[Progress]:
        return [p for p in self._peer_set.places if p.state is PeerState.GREETED]

    def _greatest_term(self) -> int:
        """The greatest term seen, including a learner's promise, with which it could not join
        us."""
        assert self.membership is not None
        terms = [p.promised.term for p in self._greeted()]
        return max(self.membership.stamp.author.term, *terms)
