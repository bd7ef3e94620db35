"""How a leader changes its membership: one request at a time, or a change that it found. Pure.

`membership_change.py` decides what is written when, `learners.py` adds new safekeepers,
`outsiders.py` removes unwanted ones. The membership itself belongs to the leader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import UNKNOWN_INSTANCE, Member, Stamp
from quorum_wal.walproposer.stream.events import (
    Action,
    ChangeRequest,
    ChangeView,
    Joined,
    Left,
)
from quorum_wal.walproposer.stream.learners import Learners
from quorum_wal.walproposer.stream.membership_change import MembershipChange
from quorum_wal.walproposer.stream.outsiders import Outsiders
from quorum_wal.walproposer.stream.progress import Progress

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.leader import Leader


class Members:
    """For one leader. `change` is the one in progress, or the last one."""

    def __init__(self) -> None:
        self.change: MembershipChange | None = None
        self._learners: Learners | None = None
        self._outsiders = Outsiders()

    @property
    def is_changing(self) -> bool:
        return self.change is not None and not self.change.is_finished

    @property
    def learners(self) -> tuple[Member, ...]:
        return self.change.learners if self.change is not None else ()

    def view(self, leader: Leader) -> ChangeView | None:
        return self.change.view(leader) if self.change is not None else None

    def held_lsn(self, leader: Leader) -> int:
        """The position to which learners hold truncate_lsn back (R1)."""
        if self._learners is None or not self.learners:
            return 1 << 64
        return self._learners.held_lsn(leader)

    def remaining(self, leader: Leader) -> list[Progress]:
        return self._outsiders.remaining(leader)

    def ordered_generation(self, member: Member) -> int:
        """The generation with which this leader ordered it to leave; 0: never."""
        return self._outsiders.ordered_generation(member)

    # ---- requests

    def begin(self, leader: Leader) -> list[Action]:
        """Complete a change that another leader entered, before anything else."""
        if not leader.membership.is_joint:
            return []
        self.change = MembershipChange.found(leader.membership, leader.now_ms)
        return self.change.go_on(leader)

    def request(self, leader: Leader, request: ChangeRequest) -> list[Action]:
        """Ignored while another change is in progress: the shell has refused it."""
        if self.is_changing:
            return []
        self.change = MembershipChange.requested(request, leader.membership, leader.now_ms)
        self._learners = Learners(self.change.added, leader.now_ms)
        return [*leader.seat(), *self.go_on(leader)]

    def cancel(self, leader: Leader) -> list[Action]:
        if self.change is not None:
            self.change.cancel()
        return self.go_on(leader)

    # ---- events

    def go_on(self, leader: Leader) -> list[Action]:
        """After an answer: advance the change as far as possible."""
        if self.change is None or self.change.is_finished:
            return []
        actions = self._learners.ask(leader) if self._learners is not None and self.learners else []
        actions += self.change.go_on(leader)
        return actions + self._outsiders.order_to_leave(leader)

    def greeted(self, leader: Leader, place: Progress) -> list[Action]:
        """A safekeeper greeted the leader. It may show that one to be added is impossible."""
        actions: list[Action] = []
        if self._learners is not None and self.learners:
            problem = self._learners.problem_of(leader, place)
            if problem:
                actions += self._refuse(leader, problem)
        actions += leader.seat()
        return actions + self.go_on(leader) + self._outsiders.order_to_leave(leader)

    def promised_more(self, leader: Leader, place: Progress, promised: NodeId) -> list[Action]:
        """Rule 11: a learner with a greater promise cannot be added in this term, and has no other
        effect."""
        place.promised = promised
        actions = place.close(f"it has promised {promised}")
        if self._learners is None or not self.learners:
            return actions
        problem = self._learners.problem_of(leader, place)
        return actions + self._refuse(leader, problem) if problem else actions

    def joined(self, leader: Leader, place: Progress, answer: Joined) -> list[Action]:
        if self._learners is None or self.change is None:
            return []
        actions = self._learners.joined(leader, place, answer)
        if self.learners and answer.is_refused:
            return actions + self._refuse(leader, answer.error)
        if self.is_changing:
            self.change.error = answer.error
        return actions

    def _refuse(self, leader: Leader, problem: str) -> list[Action]:
        assert self.change is not None
        self.change.refuse(problem)
        return leader.seat()

    def left(self, leader: Leader, place: Progress, answer: Left) -> list[Action]:
        return [*self._outsiders.left(leader, place, answer), *self.go_on(leader)]

    def tick(self, leader: Leader) -> list[Action]:
        actions = self._maybe_fill_in(leader)
        actions += self.go_on(leader)
        return actions + self._outsiders.order_to_leave(leader) + self._outsiders.forget(leader)

    # ---- rule 10: members that an older release did not describe

    def _maybe_fill_in(self, leader: Leader) -> list[Action]:
        """Once all members have answered this leader, it knows their instances and addresses."""
        old = leader.membership
        if self.is_changing or old.is_joint or leader.informed_ids != set(old.members):
            return []
        known = tuple(old.member(i) for i in old.members)
        roster = tuple(_filled_in(member, leader) for member in known)
        if roster == known:
            return []
        stamp = Stamp(leader.term.node_id, old.generation + 1)
        return leader.write(old.listed_as(stamp, roster))


def _filled_in(member: Member, leader: Leader) -> Member:
    place = leader.peer_set.of_member(member)
    if place is None or (member.host and member.instance != UNKNOWN_INSTANCE):
        return member
    host, port = (member.host, member.port) if member.host else place.address
    return Member(member.id, place.instance, host, port, member.site)
