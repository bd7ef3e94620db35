"""The plan of a seed in worlds whose members change: its faults, some of which are the changes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from random import Random
from typing import TYPE_CHECKING

from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.messages import VoteRequest
from quorum_wal.walproposer.stream.events import ChangeRequest

from .faults import PLACES, WEIGHTS, Fault, Plan
from .incarnation import Incarnation
from .node import Node
from .node_state import NodeState
from .sets import nodes_of

if TYPE_CHECKING:
    from .changing_world import ChangingWorld

QUIET_US = 1_500_000
LOOK_US = 20_000
SLOW_US = 60_000
#: A member that loses data there loses it permanently, or loses its vote: sets of one or two would
#: end.
LEFT_OUT = ("wipe", "rot", "rot_running")
CHANGES: dict[str, float] = {
    "change_members": 25, "change_and_go_on": 10, "request_again": 4, "cancel_change": 5,
    "move_server": 3, "announce_move": 4, "lose_disk": 1.5, "switch_off": 4, "reach_few": 6,
    "strand_changing_leader": 4, "end_in_a_change": 5, "late_votes": 3,
}  # fmt: skip
#: Depends on the temper of the seed: which faults are common in it.
FOCI: dict[str, tuple[str, ...]] = {
    "none": (),
    "changes": ("change_members", "cancel_change"),
    "changes of the deposed": ("change_members", "strand_changing_leader", "rival"),
    "few are reached": ("change_members", "reach_few", "rival"),
    "leaving ones": ("change_members", "switch_off"),
    "lost disks": ("change_members", "lose_disk", "reach_few"),
    "crashes": ("change_members", "crash_proposer", "crash_node", "rival"),
    "ends in a change": ("change_members", "end_in_a_change", "kill_node"),
    "late votes": ("late_votes", "change_members", "strand_changing_leader"),
    "slow disks": ("change_members", "slow_flush", "end_in_a_change", "bulk_load"),
}
FOCUS_WEIGHT = 25
#: Shapes that chance makes in one of thousands of seeds are the focus of some seeds.
STEERED = {"returning ones": "leave_and_return", "abandoned sets": "abandon_new_set"}
STEERED_SHARE = 0.15  # of the seeds


@dataclass(frozen=True, slots=True)
class ChangingPlan(Plan):
    spares_count: int = 0
    set_size_max: int = 3
    disks_to_lose: int = 0

    @classmethod
    def of(cls, seed: int) -> ChangingPlan:
        random = Random(f"changing plan {seed}")
        plan = Plan.of(seed)
        focus, steered = random.choice(list(FOCI)), Random(f"steered {seed}")
        kept = {kind: weight / 5 for kind, weight in WEIGHTS.items() if kind not in LEFT_OUT}
        weights = [
            FOCUS_WEIGHT if kind in FOCI.get(focus, ()) else weight * random.choice((0.2, 1, 1, 3))
            for kind, weight in (kept | CHANGES).items()
        ]
        rare: list[str] = []
        if steered.random() < STEERED_SHARE:
            focus = steered.choice(list(STEERED))
            rare = [STEERED[focus]]
        weights += [FOCUS_WEIGHT for _ in rare]
        horizon_us = random.choice((1_000_000, 2_000_000, 4_000_000))
        kinds = random.choices([*kept, *CHANGES, *rare], weights, k=random.choice((20, 40, 80)))
        times = sorted(random.randrange(20_000, horizon_us) for _ in kinds)
        values = {field.name: getattr(plan, field.name) for field in fields(plan)}
        values |= {
            "focus": focus,
            "horizon_us": horizon_us,
            "nodes_count": random.choice((1, 2, 3, 3, 3, 3, 4, 5)),
            "is_restoring": random.random() < 0.7,
            "write_us": random.choice((5000, 20_000, 20_000)),
            "faults": tuple(
                Fault(at_us, kind, random.getrandbits(32))
                for at_us, kind in zip(times, kinds, strict=True)
            ),
        }
        return cls(
            **values,
            spares_count=random.choice((2, 3, 4)),
            set_size_max=random.choice((3, 3, 5)),
            disks_to_lose=random.choice((0, 0, 1, 2)),
        )


def some_process(world: ChangingWorld, random: Random) -> Incarnation | None:
    """Mostly one that leads, or believes so."""
    running = world.running()
    leading = [process for process in running if process.is_leading]
    pool = leading if leading and random.random() < 0.9 else running
    return random.choice(pool) if pool else None


def change_members(world: ChangingWorld, random: Random) -> None:
    process = some_process(world, random)
    if process is None or process.core.membership is None:
        return
    membership = process.core.membership
    wanted = world.wanted(membership, random)
    if wanted:
        world.request(process, ChangeRequest(membership.generation, wanted))


def change_and_go_on(world: ChangingWorld, random: Random) -> None:
    """A change, and writes meanwhile."""
    change_members(world, random)
    for delay_us in range(10_000, 100_000, 20_000):
        world.clock.call_later(delay_us, world.load, 1)


def request_again(world: ChangingWorld, random: Random) -> None:
    """As after a failover: to the present leader, maybe long after it was completed or given up."""
    process = some_process(world, random)
    if process is not None and world.requests:
        recent = world.requests[-1]
        world.request(process, random.choice((recent, random.choice(world.requests))))


def cancel_change(world: ChangingWorld, random: Random) -> None:
    process = some_process(world, random)
    if process is not None:
        world.cancel(process)


def move_server(world: ChangingWorld, random: Random) -> None:
    """One at a time, and mostly announced."""
    process = some_process(world, random)
    if process is None or process.core.membership is None or not process.is_leading:
        return
    membership = process.core.membership
    nodes = nodes_of(world.nodes, membership, membership.members)
    lost = [node for node in nodes if not _is_found(membership, node)]
    up = [node for node in nodes if node.state is NodeState.UP]
    if membership.is_joint or lost or not up:
        return
    world.move(random.choice(up))
    if random.random() < 0.7:
        world.clock.call_later(random.choice((1000, 50_000)), announce_move, world, random)


def announce_move(world: ChangingWorld, random: Random) -> None:
    """Equal ids, with their present addresses."""
    process = some_process(world, random)
    if process is None or process.core.membership is None:
        return
    membership = process.core.membership
    nodes = nodes_of(world.nodes, membership, membership.members)
    if len(nodes) == len(membership.members):
        wanted = tuple(sorted(node.as_member() for node in nodes))
        world.request(process, ChangeRequest(membership.generation, wanted))


def _is_found(membership: Membership, node: Node) -> bool:
    return membership.member(node.number).address == node.as_member().address


def lose_disk(world: ChangingWorld, random: Random) -> None:
    known = [node for node in world.nodes if node.state in (NodeState.UP, NodeState.DOWN)]
    if known and world.disks_lost < world.plan.disks_to_lose:
        world.lose_disk(random.choice(known), keeps_id=random.random() < 0.6)


def switch_off(world: ChangingWorld, random: Random) -> None:
    """A safekeeper that has left, by a leader's report."""
    for process in random.sample(world.running(), len(world.running())):
        if left := world.may_be_switched_off(process):
            world.switch_off(random.choice(left))
            return


def reach_few(world: ChangingWorld, random: Random) -> None:
    """Some safekeepers are unreachable from one place for a long time."""
    place, share = random.choice(PLACES), random.choice((0.2, 0.4, 0.6))
    nodes = [node for node in world.nodes if random.random() < share]
    ways = random.choice(((True,), (False,), (True, False), (True, False)))
    cuts = {(place, node.number, way) for node in nodes for way in ways}
    world.network.cuts |= cuts
    world.clock.call_later(random.choice((100_000, 300_000, 1_000_000)), world.heal, cuts)


def strand_changing_leader(world: ChangingWorld, random: Random) -> None:
    """A leader in the middle of a change reaches few, and a rival that reaches others starts."""
    process = some_process(world, random)
    if process is None or not process.is_leading:
        return
    nodes = random.sample(world.nodes, len(world.nodes) * 2 // 3)
    cuts = {(process.place, node.number, way) for node in nodes for way in (True, False)}
    delay_us = random.choice((0, 5000, 20_000))
    world.clock.call_later(delay_us, world.cut, cuts)
    change_members(world, random)
    world.clock.call_later(delay_us + 1000, world.attach, world.some_primary(random))
    for later_us in (60_000, 120_000):  # both change the members, by one generation
        world.clock.call_later(delay_us + later_us, change_members, world, random)
    world.clock.call_later(random.choice((100_000, 400_000, 1_000_000)), world.heal, cuts)


def late_votes(world: ChangingWorld, random: Random) -> None:
    """A rival requests votes from the members that it has greeted, and they change meanwhile."""
    delay_us = random.choice((20_000, 60_000, 150_000))
    world.network.delay_us[VoteRequest] = delay_us
    world.clock.call_later(2 * delay_us, world.calm_network)
    world.attach(world.some_primary(random))
    world.clock.call_later(random.choice((1000, 5000, 20_000)), change_members, world, random)
    world.load(2)


def end_in_a_change(world: ChangingWorld, random: Random) -> None:
    """Each leader ends after it has written a membership that changes the sets, or a little later;
    some of the safekeepers may be unreachable then."""
    world.ends_in_change = random.choice((True, False)), random.choice((0, 0, 1000, 5000, 20_000))
    change_members(world, random)
    if random.random() < 0.5:
        random.choice(world.nodes).stop()


def leave_and_return(world: ChangingWorld, random: Random) -> None:
    """A member leaves and returns to the same leader, as one of two; nothing is written meanwhile,
    and its disk is slow."""
    process = some_process(world, random)
    if process is None or process.core.membership is None or not process.is_leading:
        return
    membership = process.core.membership
    inside = nodes_of(world.nodes, membership, membership.members)
    if membership.is_joint or len(inside) < 2:
        return
    leaver, *others = random.sample(inside, len(inside))
    world.quiet_until_us = world.clock.now_us + QUIET_US
    world.ask_for(process, others)
    world.clock.call_later(LOOK_US, come_back, world, process, leaver, others[0])


def come_back(world: ChangingWorld, process: Incarnation, leaver: Node, other: Node) -> None:
    change = process.core.change
    if not process.is_leading or world.clock.now_us >= world.quiet_until_us:
        return
    if change is None or not change.is_finished or not leaver.disk.control.has_left:
        world.clock.call_later(LOOK_US, come_back, world, process, leaver, other)
        return
    leaver.batch_us = SLOW_US
    world.clock.call_later(5 * SLOW_US, leaver.calm)
    world.ask_for(process, [leaver, other])


def abandon_new_set(world: ChangingWorld, random: Random) -> None:
    """A leader ends in a joint membership whose new set is mostly new members; its successor loses
    them as soon as it is elected."""
    process = some_process(world, random)
    if process is None or process.core.membership is None or not process.is_leading:
        return
    membership = process.core.membership
    inside = nodes_of(world.nodes, membership, membership.members)
    outside = [node for node in world.nodes if node not in inside and node.is_reachable]
    count = min(len(outside), world.plan.set_size_max // 2 + 1)
    if membership.is_joint or not count:
        return
    world.ends_in_change, world.loses_new_set = (True, random.choice((0, 1000, 5000))), True
    world.ask_for(process, random.sample(outside, count) + inside[: count - 1])


CHANGE_KINDS: dict[str, Callable[[ChangingWorld, Random], None]] = {
    name: globals()[name] for name in (*CHANGES, *STEERED.values())
}
