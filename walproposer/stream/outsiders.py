"""Safekeepers that a leader meets and that are in no set: ordered to leave, then forgotten. Pure.

Laws: D1, a safekeeper gets the order only when the membership without it is in force. A3, LEAVE
names the sets, and a safekeeper in one of them refuses it. A safekeeper that is not met is left to
a later leader, or named by `sk`. It has an old membership, cannot elect a leader alone, and refers
clients to the members that it knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.membership import Member
from quorum_wal.walproposer.stream.events import Action, Leave, Left
from quorum_wal.walproposer.stream.progress import PeerState, Progress

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader

# A safekeeper that refused, or could not be reached, gets the order again after this time.
RETRY_MS = 5_000
# An address where no safekeeper answers any more, and that was not given to this proposer, is
# dropped.
FORGET_MS = 60_000


class Outsiders:
    """For one leader."""

    def __init__(self) -> None:
        #: The generation of the last order to each, by id and instance. An order may arrive at any
        #: time, until the safekeeper has a greater generation.
        self._ordered: dict[tuple[int, bytes], int] = {}
        #: The places that are to answer with Left: deleting the WAL may take long.
        self._leaving: set[int] = set()
        #: The time of the next order to each.
        self._retry_ms: dict[int, int] = {}
        self._unused_since_ms: dict[int, int] = {}

    def remaining(self, leader: Leader) -> list[Progress]:
        """The connected safekeepers that have the timeline. One with a greater promise than this
        leader's NodeId is left to a later leader."""
        return [
            p
            for p in leader.peers
            if p.state is PeerState.OUTSIDE and not p.has_left and p.promised <= leader.term.node_id
        ]

    def order_to_leave(self, leader: Leader) -> list[Action]:
        """Send the orders. Also to a learner that needs WAL which no safekeeper has: it starts
        again, further on."""
        if leader.membership.is_joint or not leader.is_in_force:
            return []
        behind = [p for p in leader.peers if p.is_learner and p.state is PeerState.LEFT_BEHIND]
        actions: list[Action] = []
        for place in self.remaining(leader) + behind:
            is_due = leader.now_ms >= self._retry_ms.get(place.peer, 0)
            if is_due and place.peer not in self._leaving:
                self._leaving.add(place.peer)
                who = (place.safekeeper_id or 0, place.instance)
                self._ordered[who] = leader.membership.generation
                actions.append(Leave(place.peer, *who, leader.membership))
        return actions

    def ordered_generation(self, member: Member) -> int:
        """0: never."""
        return self._ordered.get((member.id, member.instance), 0)

    def left(self, leader: Leader, place: Progress, answer: Left) -> list[Action]:
        self._leaving.discard(place.peer)
        if answer.error:
            self._retry_ms[place.peer] = leader.now_ms + RETRY_MS
        if answer.error or place.is_member:
            return []  # ordered again later, or it is a member again
        self._retry_ms.pop(place.peer, None)
        place.has_left = True
        place.forget()
        if place.is_learner:
            return place.close("it has left, to join again") if _is_connected(place) else []
        return leader.peer_set.forget(place, "it has left")

    def forget(self, leader: Leader) -> list[Action]:
        """Forget those that have left; and, after a while, unused addresses."""
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
