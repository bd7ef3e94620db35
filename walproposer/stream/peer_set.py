"""The places of a proposer: open addresses, the safekeepers that answer there, and seats. Pure.

An address is only a hint. Id and instance identify a safekeeper (rule 1). So a safekeeper that is
reached at two addresses is one, and another instance with a member's id is not a member (A1).

    given and learnt ---\\
    roster of a membership --> places 0, 1, ... --greeting--> id, instance --> member, learner, none
    learners -----------/

It sends nothing to a safekeeper. The candidate and the leader act on seats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.consensus.messages import SafekeeperGreeting
from quorum_wal.walproposer.stream.events import Action, ForgetPeer, OpenPeer
from quorum_wal.walproposer.stream.progress import PeerState, Progress


class PeerSet:
    """`places` grows. A place never changes its number or its address."""

    def __init__(
        self, given: Sequence[tuple[str, int]], learnt: Sequence[tuple[str, int]] = ()
    ) -> None:
        addresses = (*given, *learnt)
        self.places = [Progress(peer, *address) for peer, address in enumerate(addresses)]
        #: R2: some log may have been truncated up to here: we reported it, or a safekeeper that
        #: promised us did. That one may no longer be a member. A learner reports where its log
        #: begins.
        self.known_truncate_lsn = 0
        self._given_count = len(given)

    def note_truncated(self, truncate_lsn: int) -> None:
        self.known_truncate_lsn = max(self.known_truncate_lsn, truncate_lsn)

    # ---- identities

    def of_member(self, member: Member) -> Progress | None:
        """The place that has the record of this member, or None if it never answered."""
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
        """Record the safekeeper that answers here. Returns False if it already answers at another
        place."""
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
                owner = self._add("", 0)  # for the record of its predecessor here
                owner.is_open = False
            if owner is not None:
                place.exchange_records(owner)
        place.become_greeted(greeting)
        return True

    # ---- seats

    def assign(self, membership: Membership, learners: Sequence[Member] = ()) -> None:
        """Set the members and learners, by id and instance. A seat is kept: while the instance of a
        member is unknown, it is that of the first safekeeper with its id."""
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
        """Open the addresses of all that answer nowhere."""
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
