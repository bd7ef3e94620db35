"""The laws of memberships, checked after every step, over the global state.

ConfigSafety   an equal stamp means an equal membership
Monotone       the stamp of a safekeeper and of a proposer never goes back
Durable        what is answered of the membership is on disk
InForce        of two memberships that come into force, the greater stamp has no lesser generation
Author         a leader writes with its own NodeId, and each one after the first with the next
               generation; the first has the sets and the generation that it was elected under
Entering       the sets change through a joint membership, with new members who have answered
               under this NodeId and have what any leader may have truncated to
Leaving        the set that goes has answered with the joint membership, if the leader did not
               enter itself and goes back; the set that stays has all that was committed
Complete       a change is called complete when the set that stays has answered
Joining        a new log ends at or below what was committed, on who is in no set; the promise
               does not go back
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.join import TimelineOffer
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import (
    AppendResponse,
    SafekeeperGreeting,
    SafekeeperMessage,
    VoteResponse,
)
from quorum_wal.walproposer.stream import learners
from quorum_wal.walproposer.stream.events import ChangeState, Event, PeerMessage, Tick

from .broken_law import check
from .ghost import Ghost
from .sets import has_majority, has_quorum, nodes_of, sets_of

if TYPE_CHECKING:
    from .incarnation import Incarnation
    from .node import Node
    from .world import World


TICKS_MS = 200
PREPARING = (ChangeState.JOINING, ChangeState.CATCHING_UP)


class MembershipLaws:
    def __init__(self, world: World) -> None:
        self._world = world
        self._known: dict[Stamp, Membership] = {}
        self._stamps: dict[int, Stamp] = {}
        self._greatest_in_force = Stamp.FIRST
        self._came_in_force: set[Stamp] = set()
        #: For each ballot, the generation that each node has answered.
        self._answers: dict[NodeId, dict[int, int]] = {}
        #: The greatest truncate_lsn that each ballot has received.
        self._truncated: dict[NodeId, int] = {}
        #: For each process, the members that are to be added, and since which tick.
        self._learners: dict[str, dict[int, int]] = {}
        #: The ballots that have entered the joint membership that they use.
        self._has_entered: set[NodeId] = set()

    def seen(self, membership: Membership, where: object) -> None:
        known = self._known.setdefault(membership.stamp, membership)
        if known is not membership:
            check("ConfigSafety", known == membership, where, membership, "and", known)

    # ---- safekeepers

    def replied(self, node: Node, message: SafekeeperMessage) -> None:
        durable = node.disk.control.membership
        if isinstance(message, SafekeeperGreeting | VoteResponse):
            self.seen(message.membership, node.name)
            check("Durable", message.membership == durable, node.name, message)
        elif message.generation:
            author, generation = durable.stamp.author, durable.generation
            same = (author, generation) == (message.node_id, message.generation)
            check("Durable", same, node.name, message, "has", durable.stamp)

    def node_has(self, node: Node) -> None:
        membership = node.disk.control.membership
        before = self._stamps.get(node.index)
        if before is membership.stamp:
            return
        self.seen(membership, node.name)
        is_greater = before is None or before <= membership.stamp
        check("Monotone", is_greater, node.name, "had", before, "has", membership.stamp)
        self._stamps[node.index] = membership.stamp

    def joined(self, node: Node, offer: TimelineOffer, ghost: Ghost) -> None:
        assert ghost.owner is not None
        leader = ghost.owner.core.leader
        commit_lsn = leader.commit_lsn if leader is not None else 0
        name = f"{node.name} from {offer.start_lsn:X}"
        check("Joining", offer.start_lsn <= commit_lsn, name, f"committed {commit_lsn:X}")
        is_member = node in self.members(offer.membership)
        check("Joining", not is_member, node.name, "is in", offer.membership)
        self._forget(node)
        self.node_has(node)

    def left(self, node: Node) -> None:
        membership = node.disk.control.membership
        check("Complete", not membership.is_joint, node.name, "leaves", membership)
        check("Complete", node not in self.members(membership), node.name, "leaves", membership)
        self._forget(node)
        self.node_has(node)

    def _forget(self, node: Node) -> None:
        """Its log is another one now, so its earlier answers do not count (A4). They do for deposed
        leaders: those did not learn of it, and can do no harm."""
        author = node.disk.control.membership.stamp.author
        for node_id, answers in self._answers.items():
            if node_id >= author:
                answers.pop(node.index, None)

    def members(self, membership: Membership) -> list[Node]:
        return nodes_of(self._world.nodes, membership, membership.all_members)

    # ---- proposers

    def proposer_stepping(
        self, process: Incarnation, event: Event, before: Membership | None
    ) -> None:
        """The core has decided; `before`: the membership that it used until this event."""
        core, membership = process.core, process.core.membership
        if type(event) is PeerMessage:
            self._heard(process, event)
        if type(event) is Tick:
            self._note_learners(process, event.now_ms)
        if membership is None or membership is before:
            return
        self.seen(membership, process.name)
        if before is not None:
            is_greater = before.stamp <= membership.stamp
            check("Monotone", is_greater, process.name, "had", before.stamp, membership.stamp)
        if core.leader is not None and core.node_id is not None:
            self._written(process, core.node_id, before, membership)

    def _heard(self, process: Incarnation, event: PeerMessage) -> None:
        message, node_id = event.message, process.core.node_id
        node = process.met[event.peer]
        if node_id is None:
            return
        if isinstance(message, VoteResponse) and message.granted:
            known_lsn = max(self._truncated.get(node_id, 0), message.truncate_lsn)
            self._truncated[node_id] = known_lsn
        if isinstance(message, AppendResponse) and message.node_id == node_id:
            self._answers.setdefault(node_id, {})[node.index] = message.generation
            self._check_order(process)

    def _answered(self, process: Incarnation, node: Node, generation: int) -> bool:
        node_id = process.core.node_id
        assert node_id is not None
        return self._answers.get(node_id, {}).get(node.index) == generation

    def is_in_force(self, process: Incarnation) -> bool:
        """A quorum of each set has answered this leader with the present generation."""
        core = process.core
        if core.leader is None or core.membership is None:
            return False
        generation = core.membership.generation
        return has_quorum(
            self._world.nodes,
            core.membership,
            lambda node: self._answered(process, node, generation),
        )

    def _check_order(self, process: Incarnation) -> None:
        membership = process.core.membership
        assert membership is not None
        stamp, greatest = membership.stamp, self._greatest_in_force
        if stamp > greatest and self.is_in_force(process):
            check("InForce", stamp.generation >= greatest.generation, stamp, "after", greatest)
            self._greatest_in_force = stamp
            self._world.count("memberships in force")
        if stamp not in self._came_in_force and self.is_in_force(process):
            self._came_in_force.add(stamp)

    # ---- what a leader writes

    def _written(
        self, process: Incarnation, node_id: NodeId, before: Membership | None, now: Membership
    ) -> None:
        name, stamp = process.name, now.stamp
        check("Author", stamp.author == node_id, name, "writes", stamp)
        if before is None or before.stamp.author != node_id:
            return  # an elected proposer stamps the membership of its election (`elected`)
        check("Author", stamp.generation == before.generation + 1, name, before.stamp, stamp)
        if sets_of(now) == sets_of(before):
            self._world.count("addresses changed")
        elif before.is_joint:
            self._left(process, node_id, before, now)
        else:
            check("Entering", now.is_joint and now.members == before.members, name, before, now)
            self._entered(process, node_id, before, now)

    def elected(self, under: Membership, now: Membership, node_id: NodeId) -> None:
        """An elected proposer writes the membership of its election again, with its own NodeId."""
        check("Author", sets_of(under) == sets_of(now), node_id, under, now)
        check("Author", under.generation == now.generation, node_id, under.stamp, now.stamp)
        check("Author", now.stamp.author == node_id, node_id, "stamps", now.stamp)
        if now.is_joint:
            self._world.count("elections in a joint membership")

    def _entered(
        self, process: Incarnation, node_id: NodeId, before: Membership, now: Membership
    ) -> None:
        answers, known_lsn = self._answers.get(node_id, {}), self._truncated.get(node_id, 0)
        name = process.name
        for node in self.members(now):
            if node not in self.members(before):
                check("Entering", node.index in answers, name, node.name, "has not answered")
                has_all = node.disk.flushed_lsn >= known_lsn
                check("Entering", has_all, name, node.name, f"lacks WAL up to {known_lsn:X}")
        self._has_entered.add(node_id)
        self._world.count("joint memberships entered")

    def has_entered(self, process: Incarnation) -> bool:
        """The joint membership that it uses is its own."""
        return process.core.node_id in self._has_entered

    def _left(
        self, process: Incarnation, node_id: NodeId, before: Membership, now: Membership
    ) -> None:
        name, nodes = process.name, self._world.nodes
        is_back = now.members == before.members
        is_a_set = now.members in sets_of(before) and not now.is_joint
        check("Leaving", is_a_set, name, "leaves", before, "to", now)
        is_own = node_id in self._has_entered
        self._has_entered.discard(node_id)
        self._world.count(f"left {'back' if is_back else 'forward'}{'' if is_own else ', found'}")
        if is_own and is_back:
            return
        goes = before.new_members if is_back else before.members
        told = has_majority(
            nodes, before, goes, lambda n: self._answered(process, n, before.generation)
        )
        check("Leaving", told, name, "to", now, ": no quorum that goes has answered", before.stamp)
        leader = process.core.leader
        assert leader is not None
        lsn = max(leader.commit_lsn, leader.term.term_start_lsn)
        holds = self._world.invariants.holders.holds(process, lsn)
        has_data = has_majority(nodes, before, now.members, holds)
        check("Leaving", has_data, name, "to", now, f"which has not all below {lsn:X}")

    def tells(self, process: Incarnation, membership: Membership) -> None:
        """Safekeepers outside are about to be ordered to leave."""
        is_complete = not membership.is_joint and membership.stamp in self._came_in_force
        check("Complete", is_complete, process.name, "tells others to leave by", membership)

    # ---- truncate_lsn

    def _note_learners(self, process: Incarnation, now_ms: int) -> None:
        change, membership, wanted = process.core.change, process.core.membership, set[int]()
        if change is not None and membership is not None and change.state in PREPARING:
            wanted = {*change.wanted} - {*membership.all_members}
        known = self._learners.get(process.name, {})
        self._learners[process.name] = {number: known.get(number, now_ms) for number in wanted}

    def truncates(
        self, process: Incarnation, lsn: int, flushed_by: Callable[[Node, Incarnation], int]
    ) -> None:
        """The truncate_lsn that a leader sends is on the disk of each member of its sets, which has
        answered with the membership that it used, and of each learner. It is checked on ticks,
        first."""
        node_id, membership = process.core.node_id, process.core.membership
        assert node_id is not None
        assert membership is not None
        self._truncated[node_id] = max(self._truncated.get(node_id, 0), lsn)
        for node in self.members(membership):
            on_disk = lsn <= flushed_by(node, process)
            check("Truncate", on_disk, process.name, f"{lsn:X} is not on", node.name)
        counted_by = process.counted_by
        if counted_by is not None and counted_by.stamp.author == node_id:
            for node in self.members(counted_by):
                told = self._answered(process, node, counted_by.generation)
                check("Truncate", told, process.name, node.name, "has not answered", counted_by)
        now_ms = self._world.clock.now_us // 1000
        for number, since_ms in self._learners.get(process.name, {}).items():
            # Seen a tick later than by the leader, which does not wait long for a silent one.
            if not 0 < now_ms - since_ms < learners.SILENT_MS - TICKS_MS:
                continue
            nodes = [node for node in self._world.nodes if node.number == number]
            begins_anew = any(node.disk.control.has_left for node in nodes)
            on_disk = begins_anew or any(lsn <= flushed_by(node, process) for node in nodes)
            check("Truncate", on_disk, process.name, f"{lsn:X} is not on learner", number)
