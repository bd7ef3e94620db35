"""`ChangingWorld`: its members change: servers join, enter, leave, move, and lose their disks.

Its operator asks any leader for any change at any time, starts proposers with a single address that
was valid once, and switches off what a leader says has left. When the faults end, one new proposer
that knows one address must win, leave a joint membership, and commit (`rest.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quorum_wal.consensus.membership import Member, Membership
from quorum_wal.walproposer.stream.events import (
    ChangeCancelled,
    ChangeRequest,
    ChangeRequested,
    ChangeState,
)

from .changing_plan import CHANGE_KINDS, ChangingPlan
from .faults import Fault
from .incarnation import Incarnation
from .node import Address, Node, address_of
from .node_state import NodeState
from .rest import Rest
from .sets import nodes_of
from .trace import Trace
from .world import World

#: A proposer that wins nothing for so long knows the wrong addresses, and is ended.
PATIENCE_US = 600_000
#: Who found a joint membership would go back after a second, if it could.
LOST_US = 2_000_000
COMPLETE = (ChangeState.TELLING, ChangeState.DONE)


class ChangingWorld(World):
    is_changing = True
    option = "--changing "
    removes_wal = True
    law_of_rest = "Rest"
    plan: ChangingPlan
    plan_of = staticmethod(ChangingPlan.of)

    def __init__(
        self, seed: int, plan: ChangingPlan | None = None, trace: Trace | None = None
    ) -> None:
        super().__init__(seed, plan or ChangingPlan.of(seed), trace)
        self.requests: list[ChangeRequest] = []
        #: That a member had once.
        self.addresses_ever: list[Address] = [node.address for node in self.nodes]
        self.disks_lost = self.gone = self.moved = 0
        #: The next leader whose membership is joint, or was left, ends so much later.
        self.ends_in_change: tuple[bool, int] | None = None
        #: The next leader that finds a joint membership loses those who are new in it.
        self.loses_new_set = False
        #: Nobody writes until then.
        self.quiet_until_us = 0
        self._rest: Rest | None = None
        #: If it is to be just this one; else any that leads to a quorum.
        self.rests_from: Address | None = None
        for _ in range(self.plan.spares_count):
            self.add_server()

    def strike(self, fault: Fault) -> None:
        if fault.kind in CHANGE_KINDS:
            CHANGE_KINDS[fault.kind](self, Random(fault.seed))
        else:
            super().strike(fault)

    # ---- servers

    def add_server(self, number: int = 0, address: Address | None = None) -> Node:
        """A safekeeper that has no timeline yet."""
        number = number or max(node.number for node in self.nodes) + 1
        node = self.new_node(number)
        node.become_empty(address or address_of(node.index + 1))
        self.nodes.append(node)
        return node

    def lose_disk(self, node: Node, *, keeps_id: bool) -> None:
        """Another disk at its address: another safekeeper, although it may say the same id."""
        self.count("disks lost")
        self.disks_lost += 1
        node.switch_off()
        self.add_server(node.number if keeps_id else 0, node.address)

    def move(self, node: Node) -> None:
        """To another address; nobody knows it but the operator."""
        self.count("servers moved")
        self.moved += 1
        node.stop()
        node.address = (node.address[0], node.address[1] + 1)
        self.addresses_ever.append(node.address)

    # ---- the operator

    def load(self, count: int) -> None:
        if self.clock.now_us >= self.quiet_until_us:
            super().load(count)

    def ask_for(self, process: Incarnation, nodes: Sequence[Node]) -> None:
        """Just these as members."""
        membership = process.core.membership
        assert membership is not None
        members = tuple(sorted(node.as_member() for node in nodes))
        self.request(process, ChangeRequest(membership.generation, members))

    def addresses_for(self, predecessor: Incarnation | None) -> list[Address]:
        if self._rest is not None:
            return [self._rest.address]
        if predecessor is not None:
            return list(predecessor.given)
        if self.random.random() < 0.2:
            return list(dict.fromkeys(self.addresses_ever))
        return [self.random.choice(self.addresses_ever)]

    def _operate(self) -> None:
        for process in self.running():
            waits_us = self.clock.now_us - process.begun_us
            if not self.is_calm and not process.is_leading and waits_us > PATIENCE_US:
                self.count("proposers that won nothing")
                process.kill()
            self._note_members(process)
        super()._operate()

    def _note_members(self, process: Incarnation) -> None:
        """What the operator sees of its members; the next proposer may be started with them."""
        membership = process.core.membership
        if process.is_leading and membership is not None:
            for node in nodes_of(self.nodes, membership, membership.all_members):
                if node.address not in self.addresses_ever:
                    self.addresses_ever.append(node.address)

    def request(self, process: Incarnation, request: ChangeRequest) -> None:
        """The shell refuses another change while one is under way."""
        change = process.core.change
        if change is None or change.is_finished or change.wanted == request.ids:
            self.count("changes requested")
            self.requests.append(request)
            process.step(ChangeRequested(request))

    def cancel(self, process: Incarnation) -> None:
        process.step(ChangeCancelled())

    def wanted(self, membership: Membership, random: Random) -> tuple[Member, ...]:
        """Some leave, some come, those who are known to be gone first."""
        inside = nodes_of(self.nodes, membership, membership.new_members or membership.members)
        outside = [node for node in self.nodes if node not in inside and node.is_reachable]
        out = random.choice((0, 1, 1, 1, 2, 3))
        into = random.choice((0, 1, 1, 1, 2, 3))
        stays = sorted(inside, key=lambda node: (node.state is NodeState.GONE, random.random()))
        kept = stays[: max(len(stays) - out, 0)]
        kept += random.sample(outside, min(len(outside), into))
        members = {node.number: node.as_member() for node in kept[: self.plan.set_size_max]}
        return tuple(members[number] for number in sorted(members))

    def stepped(self, process: Incarnation) -> None:
        self._maybe_lose_new_set(process)
        membership, before = process.core.membership, process.counted_by
        if self.ends_in_change is None or self.is_calm or not process.is_leading:
            return
        is_joint, delay_us = self.ends_in_change
        if membership is None or before is None or before.is_joint == membership.is_joint:
            return
        if membership.is_joint == is_joint:
            self.ends_in_change = None
            self.count("leaders that ended in a change")
            self.clock.call_later(delay_us, process.kill)

    def _maybe_lose_new_set(self, process: Incarnation) -> None:
        membership = process.core.membership
        if not self.loses_new_set or self.is_calm or not process.is_leading or membership is None:
            return
        if not membership.is_joint or self.invariants.memberships.has_entered(process):
            return
        self.loses_new_set = False
        self.count("new sets lost by who found them")
        new = nodes_of(self.nodes, membership, {*membership.new_members} - {*membership.members})
        cuts = {(process.place, node.number, way) for node in new for way in (True, False)}
        self.cut(cuts)
        self.clock.call_later(LOST_US, self.heal, cuts)

    def may_be_switched_off(self, process: Incarnation) -> list[Node]:
        """Who is in no set, since the change that its leader calls complete; unless another leader
        was asked for him since."""
        change, membership = process.core.change, process.core.membership
        if change is None or membership is None or change.state not in COMPLETE:
            return []
        later = [n.disk.control.membership for n in self.nodes if n.state is not NodeState.EMPTY]
        later += [p.core.membership for p in self.running() if p.core.membership is not None]
        named = {
            node.index
            for other in later
            if other.stamp >= membership.stamp
            for node in nodes_of(self.nodes, other, other.all_members)
        }
        have_been = [node for node in self.nodes if node.state is not NodeState.EMPTY]
        return [n for n in have_been if n.index not in named and n.state is not NodeState.GONE]

    def switch_off(self, node: Node) -> None:
        self.count("servers switched off")
        self.gone += 1
        node.switch_off()

    # ---- at the end

    def end_faults(self) -> None:
        super().end_faults()
        self.kill_all()
        self._rest = Rest.found(self) if self.rests_from is None else Rest(self.rests_from)
        if self._rest is not None:
            self._operate_now()

    def _operate_now(self) -> None:
        primary = self.primaries[-1]
        if primary.is_deposed and not self.plan.is_restoring:
            self.complete_log()
        else:
            self.attach(primary)

    def is_excused(self) -> bool:
        if self._rest is None:
            self.count("ended without a quorum")
            return True
        return False

    def unsettled(self) -> str:
        if self._rest is None:
            return "no quorum is left"
        problem = super().unsettled()
        leaders = [process for process in self.running() if process.is_leading]
        for process in leaders:
            membership = process.core.membership
            assert membership is not None
            if membership.is_joint:
                return f"{process.name} has not left {membership}"
            if not self.invariants.memberships.is_in_force(process):
                return f"{process.name} has no quorum for {membership.stamp}"
        return problem

    def members(self) -> list[Node]:
        """Of the present membership; who moved and was not announced cannot be found."""
        leaders = [process for process in self.running() if process.is_leading]
        membership = leaders[0].core.membership if leaders else None
        if membership is None:
            return []
        return [
            node
            for node in nodes_of(self.nodes, membership, membership.all_members)
            if node.as_member().address == membership.member(node.number).address
        ]
