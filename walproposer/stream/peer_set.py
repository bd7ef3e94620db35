"""The places of a proposer: which addresses are open, who answers there, who has a seat. Pure.

An address is a hint; id and instance say who somebody is (rule 1). So one safekeeper that is
reached by two addresses is one, and another instance under a member's id is nobody (A1).

    given and learnt ---\\
    roster of a membership --> places 0, 1, ... --greeting--> id, instance --> member, learner, none
    learners -----------/

It may not send a word to a safekeeper: what a seat brings is the candidate's and the leader's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from consensus.membership import Member, Membership
from consensus.messages import SafekeeperGreeting
from walproposer.stream.events import Action, ForgetPeer, OpenPeer
from walproposer.stream.progress import PeerState, Progress


class PeerSet:
    """`places` grows, and no place ever changes its number or its address."""

    def __init__(
        self, given: Sequence[tuple[str, int]], learnt: Sequence[tuple[str, int]] = ()
    ) -> None:
        addresses = (*given, *learnt)
        self.places = [Progress(peer, *address) for peer, address in enumerate(addresses)]
        #: R2: so much may be gone somewhere: we said it, or who promised us did. That may be no
        #: member any more; a learner says where its log begins.
        self.known_truncate_lsn = 0
        self._given_count = len(given)

    def note_truncated(self, truncate_lsn: int) -> None:
        self.known_truncate_lsn = max(self.known_truncate_lsn, truncate_lsn)

    # ---- who is where

    def of_member(self, member: Member) -> Progress | None:
        """The place that has his record, or None as long as he never answered."""
        own = [
            p
            for p in self.places
            if p.safekeeper_id == member.id and member.is_instance(p.instance)
        ]
        return next((p for p in own if p.has_seat), own[0] if own else None)

    def at(self, host: str, port: int) -> Progress | None:
        return next((p for p in self.places if p.address == (host, port)), None)

    def is_given(self, place: Progress) -> bool:
        return place.peer < self._given_count

    def _is_answered(self, safekeeper_id: int) -> bool:
        return any(
            p.safekeeper_id == safekeeper_id and p.state is not PeerState.OFFLINE
            for p in self.places
        )

    def greeted(self, place: Progress, greeting: SafekeeperGreeting) -> bool:
        """Take the record of whoever answers here; False when he does so at another place."""
        here = (greeting.safekeeper_id, greeting.instance)
        if (place.safekeeper_id, place.instance) != here:
            owner = next(
                (p for p in self.places if (p.safekeeper_id, p.instance) == here),
                None,
            )
            if owner is not None and owner.state is not PeerState.OFFLINE:
                place.twin_id = greeting.safekeeper_id
                return False
            if owner is None and place.safekeeper_id is not None:
                owner = self._add("", 0)  # for the record of who answered here before
                owner.is_open = False
            if owner is not None:
                place.exchange_records(owner)
        place.become_greeted(greeting)
        return True

    # ---- seats

    def assign(self, membership: Membership, learners: Sequence[Member] = ()) -> None:
        """Who is a member, who a learner, by id and instance. Who has his seat keeps it: as long as
        the instance of a member is not known, it is that of the first who came with its id."""
        added = {member.id: member for member in learners}
        seated: set[int] = set()
        for place in sorted(self.places, key=lambda p: not p.has_seat):
            had_seat, number = place.has_seat, place.safekeeper_id
            place.is_member = place.is_learner = False
            if number is not None and number not in seated:
                member, learner = membership.member(number), added.get(number)
                if number in membership.all_members:
                    place.is_member = member.is_instance(place.instance)
                elif learner is not None:
                    place.is_learner = learner.is_instance(place.instance)
            if place.has_seat:
                seated.add(place.safekeeper_id or 0)
            elif had_seat:
                place.forget()

    # ---- addresses

    def reach(self, wanted: Iterable[Member]) -> list[Action]:
        """Open the address of everybody who answers nowhere."""
        actions: list[Action] = []
        for member in wanted:
            place = self.of_member(member)
            is_answered = place is not None and place.state is not PeerState.OFFLINE
            if member.host and not is_answered:
                actions += self.open(member.host, member.port)
        for place in self.places:
            if place.twin_id is not None and not self._is_answered(place.twin_id):
                actions += self.open(place.host, place.port)
        return actions

    def open(self, host: str, port: int) -> list[Action]:
        place = self.at(host, port)
        if place is not None and place.is_open:
            return []
        if place is None:
            place = self._add(host, port)
        place.is_open, place.twin_id = True, None
        return [OpenPeer(place.peer, host, port)]

    def forget(self, place: Progress, reason: str) -> list[Action]:
        actions = place.become_offline(reason)
        place.is_open = False
        return [*actions, ForgetPeer(place.peer)]

    def _add(self, host: str, port: int) -> Progress:
        place = Progress(len(self.places), host, port)
        self.places.append(place)
        return place
