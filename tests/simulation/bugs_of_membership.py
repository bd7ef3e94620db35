"""Planted bugs of quorums and identities, and of memberships on a safekeeper.

Each drops one lettered condition of the law of memberships, or is a related mistake.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import quorum_wal.safekeeper.acceptor
import quorum_wal.safekeeper.join_rules
import quorum_wal.safekeeper.refusals
import quorum_wal.walproposer.stream.candidacy
import quorum_wal.walproposer.stream.leader
import quorum_wal.walproposer.stream.membership_change
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.consensus.messages import AppendResponse, Configure, VoteRequest
from quorum_wal.consensus.quorum import committed_lsn, quorum_size
from quorum_wal.consensus.quorum import has_quorum as has_each_quorum
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.events import Action, PersistControl, Reply
from quorum_wal.safekeeper.join_rules import departed, joined
from quorum_wal.walproposer.stream.candidacy import Candidate
from quorum_wal.walproposer.stream.events import Join, Leave, ReportFlushed
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.peer_set import PeerSet
from quorum_wal.walproposer.stream.progress import Progress
from quorum_wal.walproposer.stream.proposer import Proposer
from tests.new_timeline import new_control_state

from . import node
from .changing_world import ChangingWorld
from .commands import Commands
from .node import SERVER, Node
from .node_state import NodeState
from .planting import Patch, plant_change, plant_rare, without

Actions = list[Action]


# ---- stamps


@plant_change
def m1_stamps_are_compared_by_generation_only(patch: Patch) -> None:
    vote, hear = Acceptor._vote, Candidate.hear

    def by_generation(self: Acceptor, connection: int, request: VoteRequest) -> Actions:
        own = self.control.membership.stamp
        if request.stamp.generation >= own.generation:
            request = replace(request, stamp=max(own, request.stamp))
        return vote(self, connection, request)

    def hears(self: Candidate, membership: Membership) -> Any:
        own = self.membership
        if own is not None and membership.generation <= own.generation:
            membership = own
        return hear(self, membership)

    patch(Acceptor, "_vote", by_generation)
    patch(Candidate, "hear", hears)
    patch(quorum_wal.safekeeper.refusals, "membership_refusal", lambda own, new: None)
    patch(quorum_wal.safekeeper.acceptor, "membership_refusal", lambda own, new: None)


@plant_change
def m2_the_elected_proposer_stamps_nothing(patch: Patch) -> None:
    answer = Acceptor._append_response

    def any_author(self: Acceptor) -> AppendResponse:
        response = answer(self)
        generation = self.control.membership.generation
        return AppendResponse(generation, *[getattr(response, n) for n in FIELDS])

    patch(Membership, "stamped", lambda self, stamp: self)
    patch(quorum_wal.safekeeper.refusals, "author_refusal", lambda node_id, membership: None)
    patch(Acceptor, "_append_response", any_author)


FIELDS = AppendResponse.__struct_fields__[1:]


@plant_change
def m3_a_membership_is_adopted_from_any_sender(patch: Patch) -> None:
    def obedient(self: Acceptor, connection: int, configure: Configure) -> Actions:
        membership, own = configure.membership, self.control.membership
        if membership.stamp < own.stamp:
            membership = own
        actions = self._adopt(replace(self.control, membership=membership))
        answer = AppendResponse(
            membership.generation, configure.node_id, self.flush_lsn, self.durable_lsn,
            self.commit_lsn,
        )  # fmt: skip
        return [*actions, Reply(connection, answer)]

    patch(Acceptor, "_configure", obedient)


@plant_change
def v1_a_vote_is_given_to_a_lesser_membership(patch: Patch) -> None:
    vote = Acceptor._vote

    def whoever(self: Acceptor, connection: int, request: VoteRequest) -> Actions:
        stamp = max(request.stamp, self.control.membership.stamp)
        return vote(self, connection, replace(request, stamp=stamp))

    patch(Acceptor, "_vote", whoever)


# ---- quorums


def _old(membership: Membership) -> Membership:
    return Membership(membership.stamp, membership.members)


def _new(membership: Membership) -> Membership:
    return Membership(membership.stamp, membership.new_members or membership.members)


def _union(membership: Membership) -> Membership:
    return Membership(membership.stamp, membership.all_members)


@plant_change
def v2_elected_by_the_old_set(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.candidacy,
        "has_quorum",
        lambda m, ids: has_each_quorum(_old(m), ids),
    )


@plant_change
def v2_elected_by_the_new_set(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.candidacy,
        "has_quorum",
        lambda m, ids: has_each_quorum(_new(m), ids),
    )


@plant_change
def c1_committed_by_the_new_set(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.leader,
        "committed_lsn",
        lambda m, lsns, start: committed_lsn(_new(m), lsns, start),
    )


@plant_change
def v2_c1_a_quorum_of_the_union(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.candidacy,
        "has_quorum",
        lambda m, ids: has_each_quorum(_union(m), ids),
    )
    patch(
        quorum_wal.walproposer.stream.leader,
        "committed_lsn",
        lambda m, lsns, start: committed_lsn(_union(m), lsns, start),
    )


@plant_change
def a_quorum_of_the_old_set_everywhere(patch: Patch) -> None:
    """`has_quorum` and the commit use only `members`."""
    for module in (
        quorum_wal.walproposer.stream.candidacy,
        quorum_wal.walproposer.stream.leader,
        quorum_wal.walproposer.stream.membership_change,
    ):
        patch(module, "has_quorum", lambda m, ids: has_each_quorum(_old(m), ids))
    patch(
        quorum_wal.walproposer.stream.leader,
        "committed_lsn",
        lambda m, lsns, start: committed_lsn(_old(m), lsns, start),
    )


@plant_change
def c1_any_answer_counts(patch: Patch) -> None:
    def advance(self: Leader) -> list[Any]:
        lsns = sorted(p.flush_lsn for p in self.peers if p.safekeeper_id and p.answered)
        needed = quorum_size(len(self.membership.new_members or self.membership.members))
        lsn = lsns[-needed] if len(lsns) >= needed else 0
        if lsn <= self.commit_lsn or lsn < self.term.term_start_lsn:
            return []
        self.commit_lsn = lsn
        return [ReportFlushed(lsn)]

    patch(Leader, "_advance_commit", advance)


# ---- identities


@plant_change
def a1_a_wiped_disk_is_initialised_under_its_old_id(patch: Patch) -> None:
    lose = ChangingWorld.lose_disk

    def again(self: ChangingWorld, node: Node, *, keeps_id: bool) -> None:
        lose(self, node, keeps_id=True)
        other = self.nodes[-1]
        other.disk.control = new_control_state(self.membership, SERVER)
        other.state, other.acceptor = NodeState.UP, other.new_acceptor(other.disk.start_lsn)

    patch(ChangingWorld, "lose_disk", again)
    patch(Member, "is_instance", lambda self, instance: True)


@plant_rare
def a1_the_instance_is_not_compared(patch: Patch) -> None:
    patch(Member, "is_instance", lambda self, instance: True)


@plant_rare
def a4_positions_of_members_that_left_are_kept(patch: Patch) -> None:
    patch(Progress, "forget", lambda self: None)


@plant_change
def one_safekeeper_at_two_addresses_is_two(patch: Patch) -> None:
    def greeted(self: PeerSet, place: Progress, greeting: Any) -> bool:
        place.become_greeted(greeting)
        return True

    patch(PeerSet, "greeted", greeted)


@plant_rare
def a_learner_s_promise_fences_the_leader(patch: Patch) -> None:
    def is_fenced(self: Proposer, progress: Progress, promised: Any) -> bool:
        ours = self.candidate.ours
        return ours is not None and promised > ours

    patch(Proposer, "_is_fenced_by", is_fenced)


@plant_change
def only_the_given_addresses_are_asked(patch: Patch) -> None:
    patch(PeerSet, "reach", lambda self, wanted: [])


# ---- on a safekeeper


@plant_change
def configure_answered_before_it_is_durable(patch: Patch) -> None:
    patch(Acceptor, "_configure", without(PersistControl, Acceptor._configure))


@plant_change
def membership_adopted_in_memory_only(patch: Patch) -> None:
    def forgetful(self: Acceptor, control: Any) -> Actions:
        if control == self.control:
            return []
        durable, self.control = self.control.membership, control
        return [PersistControl(replace(control, membership=durable))]

    patch(Acceptor, "_adopt", forgetful)


@plant_change
def a2_a_member_that_left_forgets_everything(patch: Patch) -> None:
    leave = Node.leave

    def forget(self: Node, membership: Membership) -> None:
        leave(self, membership)
        if self.acceptor is not None and self.disk.control.has_left:
            self.become_empty(self.address)

    patch(Node, "leave", forget)


@plant_change
def a2_joined_again_by_the_lesser(patch: Patch) -> None:
    patch(quorum_wal.safekeeper.join_rules, "_check_may_return", lambda existing, offer: None)


@plant_change
def a3_a_late_leave_deletes_a_member_which_votes(patch: Patch) -> None:
    """It was ordered to leave before it was added again, and has a greater membership since."""

    def deletes(number: int, control: ControlState, membership: Membership) -> ControlState:
        if control.membership.stamp <= membership.stamp:
            return departed(number, control, membership)
        empty = departed(number, replace(control, membership=membership), membership)
        return replace(empty, membership=control.membership, has_left=False)

    patch(node, "departed", deletes)
    words_may_be_late(patch)


def words_may_be_late(patch: Patch) -> None:
    """Not a bug: LEAVE and JOIN arrive so late that other leaders have written memberships
    meanwhile, and a second time."""
    delay_us, join, leave = Commands.delay_us, Commands.join, Commands.leave

    def later(self: Commands) -> int:
        return delay_us(self) * self._world.random.choice((1, 1, 5))

    def twice(self: Commands, order: Join) -> None:
        join(self, order)
        self._world.clock.call_later(4 * self.delay_us(), again, self, order)

    def again(self: Commands, order: Join) -> None:
        node = self._reached(order.peer)
        if node is not None and order.member.is_instance(node.instance):
            with suppress(SafekeeperError):
                node.join(order.offer)

    def leaves_twice(self: Commands, order: Leave) -> None:
        leave(self, order)
        self._world.clock.call_later(4 * self.delay_us(), leaves_again, self, order)

    def leaves_again(self: Commands, order: Leave) -> None:
        node = self._reached(order.peer)
        if node is not None and node.instance == order.instance:
            with suppress(SafekeeperError):
                node.leave(order.membership)

    patch(Commands, "leave", leaves_twice)
    patch(Commands, "delay_us", later)
    patch(Commands, "join", twice)


@plant_change
def a3_a_member_is_given_the_timeline_again(patch: Patch) -> None:
    """An offer arrives late, or twice; the member keeps its promise and its membership."""

    def again(
        number: int, timeline: TimelineId, offer: TimelineOffer, before: ControlState | None
    ) -> ControlState:
        if before is None or before.has_left:
            return joined(number, timeline, offer, before)
        anew = joined(number, timeline, offer, None)
        membership = max(before.membership, offer.membership, key=lambda m: m.stamp)
        promised = max(before.promised, offer.node_id)
        return replace(anew, promised=promised, membership=membership)

    patch(node, "joined", again)
    words_may_be_late(patch)


@plant_change
def a_join_is_answered_before_it_is_durable(patch: Patch) -> None:
    """The power fails soon, and nothing of it remains unless another message was persisted."""
    join, lose_power = Node.join, Node.lose_power

    def joins(self: Node, offer: TimelineOffer) -> None:
        before = self.disk.control if self.state is not NodeState.EMPTY else None
        join(self, offer)
        if before is None and self.state is NodeState.UP:
            self.disk.unsynced = self.disk.control  # type: ignore[attr-defined]
            delay_us = self.world.random.choice((2000, 20_000, 60_000, 100_000))
            self.world.clock.call_later(delay_us, self.lose_power)

    def loses(self: Node) -> None:
        is_up = self.acceptor is not None
        lose_power(self)
        unsynced, control = getattr(self.disk, "unsynced", None), self.disk.control
        if not is_up or unsynced is None:
            return
        if (control.promised, control.membership) == (unsynced.promised, unsynced.membership):
            self.become_empty(self.address)

    patch(Node, "join", joins)
    patch(Node, "lose_power", loses)
