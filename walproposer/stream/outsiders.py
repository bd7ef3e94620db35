"""Those whom a leader meets and who are in no set: told to leave, then forgotten. Pure.

Laws: D1, nobody is told before the membership without him is in force; A3, LEAVE names the sets,
and who is in one refuses it. Whoever is not met is left to a later leader, or named by `sk`: he
holds an old membership, elects nobody alone, and leads on to the members that he knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from consensus.membership import Member
from walproposer.stream.events import Action, Leave, Left
from walproposer.stream.progress import PeerState, Progress

if TYPE_CHECKING:
    from walproposer.stream.leader import Leader

# One that refused, or could not be asked, is told again after this.
RETRY_MS = 5_000
# An address that leads to nobody any more, and was not given to this proposer, is dropped.
FORGET_MS = 60_000


class Outsiders:
    """Of one leader."""

    def __init__(self) -> None:
        #: By which generation each was told last, by id and instance. A word that was sent may
        #: arrive at any time, until he has a greater generation.
        self._told: dict[tuple[int, bytes], int] = {}
        #: The places that Left is awaited of: it deletes its WAL, which may take long.
        self._telling: set[int] = set()
        #: Until when each is not told again.
        self._retry_ms: dict[int, int] = {}
        self._unused_since_ms: dict[int, int] = {}

    def untold(self, leader: Leader) -> list[Progress]:
        """Who is connected, and has the timeline. One that has promised more than this leader's
        NodeId is a later leader's to tell."""
        return [
            p
            for p in leader.peers
            if p.state is PeerState.OUTSIDE and not p.has_left and p.promised <= leader.term.node_id
        ]

    def tell(self, leader: Leader) -> list[Action]:
        """Also a learner that needs WAL which nobody has: it begins anew, further on."""
        if leader.membership.is_joint or not leader.is_in_force:
            return []
        behind = [p for p in leader.peers if p.is_learner and p.state is PeerState.LEFT_BEHIND]
        actions: list[Action] = []
        for place in self.untold(leader) + behind:
            is_due = leader.now_ms >= self._retry_ms.get(place.peer, 0)
            if is_due and place.peer not in self._telling:
                self._telling.add(place.peer)
                who = (place.safekeeper_id or 0, place.instance)
                self._told[who] = leader.membership.generation
                actions.append(Leave(place.peer, *who, leader.membership))
        return actions

    def told_generation(self, member: Member) -> int:
        """0: never."""
        return self._told.get((member.id, member.instance), 0)

    def left(self, leader: Leader, place: Progress, answer: Left) -> list[Action]:
        self._telling.discard(place.peer)
        if answer.error:
            self._retry_ms[place.peer] = leader.now_ms + RETRY_MS
        if answer.error or place.is_member:
            return []  # told again later, or he is a member again since
        self._retry_ms.pop(place.peer, None)
        place.has_left = True
        place.forget()
        if place.is_learner:
            return place.close("it has left, to join anew") if _is_connected(place) else []
        return leader.peer_set.forget(place, "it has left")

    def forget(self, leader: Leader) -> list[Action]:
        """Who has left; and, after a while, addresses that nobody wants."""
        learners = leader.members.learners
        wanted = {(m.host, m.port) for m in (*leader.membership.roster, *learners)}
        actions: list[Action] = []
        for place in leader.peers:
            if not place.is_open or place.has_seat or place.address in wanted:
                self._unused_since_ms.pop(place.peer, None)
            elif place.state is PeerState.OUTSIDE and place.has_left:
                actions += leader.peer_set.forget(place, "it has left")
            elif place.state is PeerState.OFFLINE and not leader.peer_set.is_given(place):
                since_ms = self._unused_since_ms.setdefault(place.peer, leader.now_ms)
                if leader.now_ms - since_ms >= FORGET_MS:
                    actions += leader.peer_set.forget(place, "it is in no set")
        return actions


def _is_connected(place: Progress) -> bool:
    return place.state is not PeerState.OFFLINE
