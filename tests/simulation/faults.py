"""Faults: which faults a seed has, and when. They are a list, so that a failing run can be repeated
with fewer.

A fault is drawn completely before the run, from its own random stream; omitting one changes no
other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from quorum_wal.consensus.messages import Append, AppendResponse, Elected, VoteRequest, VoteResponse
from quorum_wal.walproposer.stream.progress import PeerState

from .disk import Failure
from .log import HEADER_BYTES, PAGE_SIZE, WAL_SEG_SIZE
from .node import Node
from .node_state import NodeState

if TYPE_CHECKING:
    from .world import World


#: Without its padding.
PAGE_HEADER_BYTES = 20


@dataclass(frozen=True, slots=True)
class Fault:
    """`seed` draws everything that is decided when it happens."""

    at_us: int
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} at {self.at_us / 1e6:.3f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """The faults of a seed."""

    #: The shape that this run is steered to.
    focus: str
    nodes_count: int
    is_restoring: bool
    is_wild: bool
    write_us: int
    horizon_us: int
    faults: tuple[Fault, ...]

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"plan {seed}")
        horizon_us = random.choice((600_000, 1_000_000, 2_000_000, 4_000_000))
        focus = random.choice(list(FOCI))
        # Each seed has a temper: faults that are rare in one run are common in another.
        weights = [
            FOCUS_WEIGHT if kind in FOCI[focus] else weight * random.choice((0.2, 1, 1, 3))
            for kind, weight in WEIGHTS.items()
        ]
        count = random.choice((6, 20, 50, 100))
        kinds = random.choices(list(WEIGHTS), weights, k=count)
        times = sorted(random.randrange(20_000, horizon_us) for _ in kinds)
        if FOCI[focus] and random.random() < 0.5:
            # Damage at the end must be repaired without a fault that hides it.
            kinds[-1] = FOCI[focus][0]
            times[-1] = horizon_us - random.choice((1000, 20_000, 60_000))
            times.sort()
        return cls(
            focus=focus,
            nodes_count=random.choice((3, 3, 5)),
            is_restoring=random.random() < 0.5 and "roll_back_primary" not in FOCI[focus],
            is_wild=random.random() < 0.2,
            write_us=random.choice((2000, 5000, 20_000)),
            horizon_us=horizon_us,
            faults=tuple(
                Fault(at_us, kind, random.getrandbits(32))
                for at_us, kind in zip(times, kinds, strict=True)
            ),
        )


# ---- proposers and primaries


def rival(world: World, random: Random) -> None:
    """Another proposer is started, of a known or a new primary, while others run."""
    world.attach(world.some_primary(random))


def race(world: World, random: Random) -> None:
    """None runs, and several start at once: they read the same promises and choose one term."""
    world.kill_all()
    for _ in range(random.choice((2, 2, 3))):
        world.attach(world.some_primary(random))


def kill_proposer(world: World, random: Random) -> None:
    if running := world.running():
        process = random.choice(running)
        if random.random() < 0.5:
            process.stop_in_order()
        else:
            process.kill()


def crash_proposer(world: World, random: Random) -> None:
    """In the middle of a list of actions."""
    if running := world.running():
        random.choice(running).actions_left = random.randrange(12)


def pause_proposer(world: World, random: Random) -> None:
    if running := world.running():
        process = random.choice(running)
        process.is_paused = True
        world.clock.call_later(_some_time(random), world.resume, process)


def crash_primary(world: World, random: Random) -> None:
    """It returns on its timeline; its proposer loses it and continues as a new incarnation."""
    if running := [p for p in world.running() if p.primary is not None]:
        process = random.choice(running)
        process.kill()
        world.clock.call_later(_some_time(random), world.attach_again, process)


def failover(world: World, _: Random) -> None:
    """The log is completed without a primary, and a standby that replayed it is promoted."""
    world.complete_log()


def promote_ahead(world: World, random: Random) -> None:
    """A standby that followed a primary directly is promoted, with more than the quorum has."""
    if not world.plan.is_restoring:
        primary = random.choice((world.primaries[-1], random.choice(world.primaries)))
        for process in world.running():
            if process.primary is primary:
                process.kill()
        world.promote(primary)


def roll_back_primary(world: World, random: Random) -> None:
    """A primary's machine is reset to a snapshot, and tries to be the primary."""
    primary = random.choice(world.primaries)
    if not primary.is_restored:
        for process in world.running():
            if process.primary is primary:
                process.kill()
        primary.roll_back(random)
        for _ in range(random.randrange(6)):
            primary.write(random)
        world.attach(primary)


def bulk_load(world: World, random: Random) -> None:
    """More WAL than the window holds, while a quorum does not answer its leader, or answers
    late."""
    leaders = [p for p in world.running() if p.is_leading and p.primary is not None]
    if not leaders:
        return
    process, time_us = random.choice(leaders), random.choice((50_000, 200_000))
    if random.random() < 0.5:
        world.network.delay_us[AppendResponse] = time_us // 2
        world.clock.call_later(time_us, world.calm_network)
    else:
        nodes = random.sample(world.nodes, len(world.nodes) // 2 + 1)
        cuts = {(process.place, node.number, way) for node in nodes for way in (True, False)}
        world.network.cuts |= cuts
        world.clock.call_later(time_us, world.heal, cuts)
    process.load(20, is_bulk=True)


# ---- safekeepers


def lose_power(world: World, random: Random) -> None:
    random.choice(world.nodes).lose_power()


def lose_power_everywhere(world: World, _: Random) -> None:
    for node in world.nodes:
        node.lose_power()


def crash_node(world: World, random: Random) -> None:
    """In the middle of a list of actions."""
    random.choice(world.nodes).actions_left = random.randrange(8)


def crash_truncating_node(world: World, _: Random) -> None:
    """Around each of its next truncations."""
    for node in world.nodes:
        node.fails_at_truncation = True


def kill_node(world: World, random: Random) -> None:
    """The process ends, the machine does not: written bytes remain."""
    random.choice(world.nodes).stop()


def pause_node(world: World, random: Random) -> None:
    node = random.choice(world.nodes)
    node.is_paused = True
    world.clock.call_later(_some_time(random), world.resume, node)


def slow_flush(world: World, random: Random) -> None:
    """Safekeepers write at once and flush late; a rival requests their votes meanwhile."""
    for node in random.sample(world.nodes, random.randint(1, len(world.nodes))):
        node.batch_us = random.choice((3000, 20_000, 60_000))
        world.clock.call_later(random.choice((20_000, 100_000)), node.calm)
    world.load(3)
    rival(world, random)


def fail_disk(world: World, random: Random) -> None:
    random.choice(world.nodes).disk.failure = random.choice(list(Failure))


def rot(world: World, random: Random) -> None:
    """A byte of a record or a page header of a safekeeper that is down, or is stopped for it, below
    its surely flushed position, mostly above its saved commit_lsn; one such member at a time.
    Padding is excluded, because no checksum of WAL covers it."""
    if any(node.disk.is_rotten for node in world.nodes):
        return
    if all(node.state is not NodeState.DOWN for node in world.nodes):
        random.choice(world.nodes).stop()
    down = [node for node in world.nodes if node.state is NodeState.DOWN]
    _rot_one(world, random, down)


def rot_running(world: World, random: Random) -> None:
    """The same while a member runs and is healthy: a donor's reader, or the scrub, finds it."""
    if all(not node.disk.is_rotten for node in world.nodes):
        _rot_one(world, random, [node for node in world.nodes if node.state is NodeState.UP])


def _rot_one(world: World, random: Random, nodes: list[Node]) -> None:
    for node in random.sample(nodes, len(nodes)):
        log, control = world.invariants.log_of(node), node.disk.control
        known_lsn = max(control.commit_lsn, control.flush_lsn)
        # The position where a start begins to decode. A scrub reads WAL below it.
        first_lsn = control.commit_lsn - control.commit_lsn % WAL_SEG_SIZE
        records = [
            start_lsn + random.randrange(HEADER_BYTES)
            for start_lsn, end_lsn in zip(log.starts, log.ends, strict=True)
            if first_lsn <= start_lsn < end_lsn <= known_lsn
            and start_lsn % PAGE_SIZE <= PAGE_SIZE - HEADER_BYTES
        ]
        pages = [
            page_lsn + random.randrange(PAGE_HEADER_BYTES)
            for page_lsn in range(first_lsn, known_lsn, PAGE_SIZE)
            if log.read(page_lsn, page_lsn + 1) != b"\0"  # zeros of a switch have no header
        ]
        above = [lsn for lsn in records + pages if lsn >= control.commit_lsn]
        places = above or random.choice((records, pages))
        if places:
            node.disk.rot(random.choice(places))
            return


def wipe(world: World, random: Random) -> None:
    """A member that alone was connected to a leader for some time loses its data. Then the others
    connect to the leader again: with the lost data they would be a quorum, and later they are one.
    """
    for process in world.running():
        following = [p.peer for p in process.core.peers if p.state is PeerState.STREAMING]
        if following and process.primary is not None:
            break
    else:
        return
    node = world.nodes[random.choice(following)]
    others = random.sample([n for n in world.nodes if n is not node], len(world.nodes) - 1)
    cuts = {(process.place, n.number, way) for n in others for way in (True, False)}
    late = {n.number for n in others[len(others) // 2 :]}
    world.network.cuts |= cuts
    process.primary.write(random)
    process.ship()
    is_choosy = random.random() < 0.8
    world.clock.call_later(10_000, _lose_data, world, node, is_choosy)
    world.clock.call_later(80_000, world.heal, {cut for cut in cuts if cut[1] not in late})
    world.clock.call_later(120_000, world.heal, cuts)


def _lose_data(world: World, node: Node, is_choosy: bool) -> None:
    others = [other.disk.flushed_lsn for other in world.nodes if other is not node]
    if node.disk.flushed_lsn > max(others) or not is_choosy:
        node.lose_data()


# ---- network


def break_connections(world: World, random: Random) -> None:
    connections = list(world.network.connections.values())
    for connection in random.sample(connections, min(len(connections), random.choice((1, 1, 3)))):
        world.network.break_connection(connection)


def partition(world: World, random: Random) -> None:
    """Some pairs cannot communicate, in one direction or in both, for some time."""
    ways = random.choice(((True,), (False,), (True, False)))
    nodes = random.sample(world.nodes, random.randint(1, len(world.nodes)))
    places = random.choice((PLACES, random.sample(PLACES, 1)))
    cuts = {(place, node.number, way) for place in places for node in nodes for way in ways}
    world.network.cuts |= cuts
    world.clock.call_later(_some_time(random), world.heal, cuts)


def strand_leader(world: World, random: Random) -> None:
    """A leader reaches one safekeeper only, and a rival starts where it reaches them all."""
    leaders = [process for process in world.running() if process.is_leading]
    if leaders:
        place = random.choice(leaders).place
        left = random.choice(world.nodes)
        ways = random.choice(((True,), (True, False)))
        others = [node for node in world.nodes if node is not left]
        cuts = {(place, node.number, way) for node in others for way in ways}
        world.network.cuts |= cuts
        world.clock.call_later(_some_time(random), world.heal, cuts)
        rival(world, random)


def split(world: World, random: Random) -> None:
    """A leader and one safekeeper on one side, the others and a rival on the other. At the end both
    leaders may be gone, and another must make one log of the two: the longer one may be the older,
    and a safekeeper of the majority may be missing."""
    leaders = [process for process in world.running() if process.is_leading]
    if not leaders:
        return
    leader, alone = random.choice(leaders), random.choice(world.nodes)
    cuts = {
        (place, node.number, way)
        for place in PLACES
        for node in world.nodes
        for way in (True, False)
        if (place == leader.place) != (node is alone)
    }
    world.network.cuts |= cuts
    leader.load(random.choice((1, 6)))
    rival(world, random)
    ends_us = random.choice((40_000, 80_000, 200_000))
    world.clock.call_later(ends_us * 3 // 4, world.load, 1)
    world.clock.call_later(ends_us, world.heal, cuts)
    if random.random() < 0.7:
        world.clock.call_later(ends_us, world.kill_all)
    if random.random() < 0.5:
        missing = random.choice([node for node in world.nodes if node is not alone])
        world.clock.call_later(ends_us, missing.stop)


def slow_network(world: World, random: Random) -> None:
    world.network.delay_factor = random.choice((3, 10, 30))
    world.clock.call_later(_some_time(random), world.calm_network)


def slow_messages(world: World, random: Random) -> None:
    """Messages of one kind are slow on every other path, and so are those sent after them."""
    kind = random.choice((Elected, Elected, VoteRequest, VoteResponse))
    world.network.delay_us[kind] = random.choice((5000, 30_000, 150_000))
    world.clock.call_later(_some_time(random), world.calm_network)


def wild_messages(world: World, random: Random) -> None:
    """Messages of one kind are lost on every other path, or arrive twice."""
    network = world.network
    kinds = random.choice((network.lost, network.doubled))
    kinds.add(random.choice((Elected, Elected, Append, VoteResponse)))
    world.clock.call_later(_some_time(random), world.calm_network)


def wild_network(world: World, random: Random) -> None:
    world.network.chance_of_loss = random.choice((0.0, 0.01, 0.05))
    world.network.chance_of_copy = random.choice((0.0, 0.01, 0.05))
    world.clock.call_later(_some_time(random), world.calm_network)


def _some_time(random: Random) -> int:
    """From an instant to longer than any timeout."""
    return random.choice((1000, 20_000, 100_000, 100_000, 700_000))


PLACES = (0, 1, 2)

WEIGHTS: dict[str, float] = {
    "rival": 10, "race": 2, "kill_proposer": 3, "crash_proposer": 3, "pause_proposer": 2,
    "crash_primary": 3, "failover": 3, "roll_back_primary": 3, "promote_ahead": 2,
    "bulk_load": 1,
    "lose_power": 4, "lose_power_everywhere": 0.5, "crash_node": 4, "crash_truncating_node": 2,
    "kill_node": 2, "pause_node": 2, "slow_flush": 1, "fail_disk": 3, "wipe": 2,
    "rot": 1, "rot_running": 1,
    "break_connections": 6, "partition": 5, "strand_leader": 4, "split": 5, "slow_network": 1,
    "slow_messages": 2, "wild_network": 1, "wild_messages": 0.3,
}  # fmt: skip

#: A shape that chance makes too rarely, and the faults that cause it together.
FOCI: dict[str, tuple[str, ...]] = {
    "none": (),
    "rivals of one term": ("race", "slow_messages"),
    "votes on unflushed bytes": ("slow_flush", "lose_power"),
    "diverged voters": ("split", "slow_messages", "crash_truncating_node"),
    "rolled back primaries": ("roll_back_primary",),
    "full windows": ("bulk_load", "pause_node"),
    "rotten logs": ("rot", "kill_node", "split"),
    "lost members": ("wipe", "race"),
    "wild messages": ("wild_messages", "race"),
}
#: The number of each of these faults; all others together are about 60.
FOCUS_WEIGHT = 25

KINDS: dict[str, Callable[[World, Random], None]] = {name: globals()[name] for name in WEIGHTS}
