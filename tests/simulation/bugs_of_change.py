"""Planted bugs of a member change: when it is entered, left and complete, and who gets orders.

Each drops one lettered condition of the law of memberships, or is a related mistake.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import quorum_wal.walproposer.stream.learners
import quorum_wal.walproposer.stream.membership_change
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.messages import SafekeeperMessage, VoteResponse
from quorum_wal.consensus.quorum import committed_lsn
from quorum_wal.walproposer.stream.events import ChangeState, Leave
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.learners import timeline_offer
from quorum_wal.walproposer.stream.membership_change import (
    MembershipChange,
    _has_data,
    _is_informed,
)
from quorum_wal.walproposer.stream.outsiders import Outsiders
from quorum_wal.walproposer.stream.progress import PeerState, Progress
from quorum_wal.walproposer.stream.proposer import Proposer

from .planting import Patch, plant_change, plant_rare, planted

CHANGE = quorum_wal.walproposer.stream.membership_change
Ids = tuple[int, ...]


# ---- entering


@plant_change
def j1_the_sets_change_at_once(patch: Patch) -> None:
    def at_once(self: Membership, stamp: Stamp, new: tuple[Member, ...]) -> Membership:
        return Membership(stamp, tuple(member.id for member in new), (), new)

    def leaving(self: MembershipChange, leader: Leader) -> list[Any]:
        self._enter_state(ChangeState.LEAVING, leader)
        return []

    patch(Membership, "joint_with", at_once)
    patch(MembershipChange, "_maybe_leave", leaving)


@plant_change
def d2_a_member_without_an_answer_enters(patch: Patch) -> None:
    patch(MembershipChange, "_may_enter", lambda self, leader: True)


@plant_rare
def d2_the_own_leave_is_forgotten(patch: Patch) -> None:
    """It may still be on its way to the safekeeper that the next request adds again."""
    patch(Outsiders, "ordered_generation", lambda self, member: 0)


@plant_change
def r2_a_member_without_truncated_wal_enters(patch: Patch) -> None:
    def may_enter(self: MembershipChange, leader: Leader) -> bool:
        places = [leader.peer_set.of_member(member) for member in self.added]
        return all(place is not None and place.generation > 0 for place in places)

    patch(MembershipChange, "_may_enter", may_enter)


@plant_change
def n1_a_new_log_ends_beyond_the_commit(patch: Patch) -> None:
    def beyond(leader: Leader) -> Any:
        commit_lsn, seg_size = leader.commit_lsn, leader.term.server.wal_seg_size
        leader.commit_lsn = leader.window.record_end_lsn + 3 * seg_size
        offer = timeline_offer(leader)
        leader.commit_lsn = commit_lsn
        return offer

    patch(quorum_wal.walproposer.stream.learners, "timeline_offer", beyond)


# ---- leaving


@plant_change
def l1_forward_without_the_old_set(patch: Patch) -> None:
    def may_leave(leader: Leader, going: Ids, staying: Ids) -> bool:
        is_forward = staying == leader.membership.new_members
        return (is_forward or _is_informed(leader, going)) and _has_data(leader, staying)

    patch(CHANGE, "_may_leave", may_leave)


@plant_change
def l1_back_without_the_new_set(patch: Patch) -> None:
    def may_leave(leader: Leader, going: Ids, staying: Ids) -> bool:
        is_back = staying == leader.membership.members
        return (is_back or _is_informed(leader, going)) and _has_data(leader, staying)

    patch(CHANGE, "_may_leave", may_leave)


@plant_change
def l2_forward_without_the_data(patch: Patch) -> None:
    def may_leave(leader: Leader, going: Ids, staying: Ids) -> bool:
        is_forward = staying == leader.membership.new_members
        return _is_informed(leader, going) and (is_forward or _has_data(leader, staying))

    patch(CHANGE, "_may_leave", may_leave)


@plant_change
def l2_forward_without_the_term_start(patch: Patch) -> None:
    def has_data(leader: Leader, members: Ids) -> bool:
        group = leader.membership.left_to(leader.membership.stamp, members)
        lsn = committed_lsn(group, leader.flush_lsns, 0)
        return lsn >= leader.commit_lsn

    patch(CHANGE, "_has_data", has_data)


@plant_rare
def l2_back_without_the_data(patch: Patch) -> None:
    def may_leave(leader: Leader, going: Ids, staying: Ids) -> bool:
        is_back = staying == leader.membership.members
        return _is_informed(leader, going) and (is_back or _has_data(leader, staying))

    patch(CHANGE, "_may_leave", may_leave)


@plant_rare
def l1_l2_a_found_membership_counts_as_the_own_one(patch: Patch) -> None:
    """As if the flag "entered" were kept for the next incarnation."""
    found = MembershipChange.found

    def own(membership: Membership, now_ms: int) -> MembershipChange:
        change = found(membership, now_ms)
        change.is_found = False
        return change

    patch(MembershipChange, "found", own)


@plant_change
def l1_counted_when_configure_is_sent(patch: Patch) -> None:
    write = Leader.write

    def counted(self: Leader, membership: Membership) -> list[Any]:
        actions = write(self, membership)
        for place in self.peers:
            if place.is_following:
                place.generation = membership.generation
        return actions

    patch(Leader, "write", counted)


@plant_change
def an_answer_of_an_earlier_generation_counts(patch: Patch) -> None:
    patch(
        Leader,
        "informed_ids",
        property(lambda self: self.ids_of(p for p in self.peers if p.generation > 0)),
    )


# ---- afterwards


@plant_change
def d1_complete_before_it_is_in_force(patch: Patch) -> None:
    patch(Leader, "is_in_force", property(lambda self: True))


@plant_change
def d1_ordered_to_leave_at_once(patch: Patch) -> None:
    """The change itself waits until it is in force; a leaving member deletes its log before."""
    order = Outsiders.order_to_leave

    def at_once(self: Outsiders, leader: Leader) -> list[Any]:
        with planted(d1_complete_before_it_is_in_force):
            return order(self, leader)

    patch(Outsiders, "order_to_leave", at_once)


@plant_change
def a3_ordered_to_leave_while_joint(patch: Patch) -> None:
    order = Outsiders.order_to_leave

    def early(self: Outsiders, leader: Leader) -> list[Any]:
        joint = leader.membership
        if not joint.is_joint or not leader.is_in_force:
            return order(self, leader)
        return [
            Leave(p.peer, p.safekeeper_id or 0, p.instance, joint)
            for p in leader.peers
            if p.is_member and p.is_following and p.safekeeper_id not in joint.new_members
        ]

    patch(Outsiders, "order_to_leave", early)


# ---- truncate_lsn


def _truncated(leader: Leader, lsn: int) -> None:
    leader.truncate_lsn = max(leader.truncate_lsn, min(lsn, leader.commit_lsn))
    leader.peer_set.note_truncated(leader.truncate_lsn)


@plant_change
def r1_truncate_lsn_of_a_quorum(patch: Patch) -> None:
    def advance(self: Leader) -> None:
        _truncated(self, self.commit_lsn)

    patch(Leader, "_advance_truncate", advance)


@plant_change
def r1_truncate_lsn_of_the_old_set_only(patch: Patch) -> None:
    def advance(self: Leader) -> None:
        lsns = self.flush_lsns
        _truncated(self, min(lsns.get(i, 0) for i in self.membership.members))

    patch(Leader, "_advance_truncate", advance)


@plant_change
def r1_truncate_lsn_without_an_answer_to_this_generation(patch: Patch) -> None:
    def advance(self: Leader) -> None:
        lsns = self.flush_lsns
        lsn = min(lsns.get(i, 0) for i in self.membership.all_members)
        _truncated(self, min(lsn, self.members.held_lsn(self)))

    patch(Leader, "_advance_truncate", advance)


@plant_change
def r1_truncate_lsn_taken_over_from_votes(patch: Patch) -> None:
    init = Leader.__init__

    def takes_over(self: Leader, *args: Any) -> None:
        init(self, *args)
        self.truncate_lsn = self.peer_set.known_truncate_lsn

    patch(Leader, "__init__", takes_over)


@plant_change
def r1_learners_do_not_hold_truncate_lsn(patch: Patch) -> None:
    held = quorum_wal.walproposer.stream.learners.Learners
    patch(held, "held_lsn", lambda self, leader: 1 << 64)


def _forgets(patch: Patch, is_unheard: Callable[[Proposer, Progress], bool]) -> None:
    """A vote's truncate_lsn that arrives while `is_unheard` is ignored."""
    heard = Proposer._peer_message

    def forgets(self: Proposer, place: Progress, message: SafekeeperMessage) -> list[Any]:
        known_lsn = self.peer_set.known_truncate_lsn
        is_forgotten = type(message) is VoteResponse and is_unheard(self, place)
        actions = heard(self, place, message)
        if is_forgotten:
            self.peer_set.known_truncate_lsn = known_lsn
        return actions

    patch(Proposer, "_peer_message", forgets)


@plant_rare
def r2_only_the_votes_of_the_election_are_known(patch: Patch) -> None:
    _forgets(patch, lambda proposer, place: proposer.leader is not None)


@plant_rare
def r2_only_the_votes_of_members_are_known(patch: Patch) -> None:
    """Only those of peers that were asked as members."""
    _forgets(patch, lambda proposer, place: place.state is PeerState.OUTSIDE)
