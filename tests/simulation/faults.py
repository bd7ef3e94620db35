"""Faults: what a seed lets happen, and when. A list, so that a failing run can be tried with less.

A fault is drawn whole before the run, from a stream of its own; leaving one out changes no other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from .disk import Failure
from .log import HEADER_BYTES, PAGE_SIZE
from .node import NodeState

if TYPE_CHECKING:
    from .world import World


@dataclass(frozen=True, slots=True)
class Fault:
    """`seed` draws everything that is decided when it strikes."""

    at_us: int
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.kind.replace('_', ' ')} at {self.at_us / 1e6:.3f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a seed stands for."""

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
        # Each seed has a temper: what is rare in one run is common in another.
        weights = [weight * random.choice((0.2, 1, 1, 3)) for weight in WEIGHTS.values()]
        count = random.choice((6, 20, 50, 100))
        kinds = random.choices(list(WEIGHTS), weights, k=count)
        times = sorted(random.randrange(20_000, horizon_us) for _ in kinds)
        return cls(
            nodes_count=random.choice((3, 3, 5)),
            is_restoring=random.random() < 0.5,
            is_wild=random.random() < 0.2,
            write_us=random.choice((2000, 5000, 20_000)),
            horizon_us=horizon_us,
            faults=tuple(
                Fault(at_us, kind, random.getrandbits(32))
                for at_us, kind in zip(times, kinds, strict=True)
            ),
        )


def strike(world: World, fault: Fault) -> None:
    world.trace("fault", fault, [], "")
    world.count(f"fault: {fault.kind.replace('_', ' ')}")
    KINDS[fault.kind](world, Random(fault.seed))


# ---- proposers and primaries


def rival(world: World, random: Random) -> None:
    """Another proposer is started, of a primary that is known or new, while others run."""
    world.attach(world.some_primary(random))


def kill_proposer(world: World, random: Random) -> None:
    if running := world.running():
        random.choice(running).kill()


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
    """It comes back on its timeline; its proposer loses it and goes on as a new incarnation."""
    if running := [p for p in world.running() if p.primary is not None]:
        process = random.choice(running)
        process.kill()
        world.clock.call_later(_some_time(random), world.attach_again, process)


def failover(world: World, _: Random) -> None:
    """The log is completed without a primary, and a standby that replayed it is promoted."""
    world.complete_log()


def roll_back_primary(world: World, random: Random) -> None:
    """A snapshot of a primary's machine comes back, and wants to be the primary."""
    primary = random.choice(world.primaries)
    if not primary.is_restored:
        for process in world.running():
            if process.primary is primary:
                process.kill()
        primary.roll_back(random)
        for _ in range(random.randrange(6)):
            primary.write(random)
        world.attach(primary)


# ---- safekeepers


def lose_power(world: World, random: Random) -> None:
    random.choice(world.nodes).lose_power()


def lose_power_everywhere(world: World, _: Random) -> None:
    for node in world.nodes:
        node.lose_power()


def crash_node(world: World, random: Random) -> None:
    """In the middle of a list of actions."""
    random.choice(world.nodes).actions_left = random.randrange(8)


def crash_truncating_node(world: World, random: Random) -> None:
    """Around the next truncation, whenever that is."""
    random.choice(world.nodes).fails_at_truncation = True


def kill_node(world: World, random: Random) -> None:
    """The process ends, the machine stays: what was written is there."""
    random.choice(world.nodes).stop()


def pause_node(world: World, random: Random) -> None:
    node = random.choice(world.nodes)
    node.is_paused = True
    world.clock.call_later(_some_time(random), world.resume, node)


def fail_disk(world: World, random: Random) -> None:
    random.choice(world.nodes).disk.failure = random.choice(list(Failure))


def rot(world: World, random: Random) -> None:
    """A byte of a record below the saved commit_lsn of a safekeeper that is down; one such member
    at most. Page headers and padding are spared: nothing in WAL protects them."""
    if any(node.disk.is_rotten for node in world.nodes):
        return
    for node in world.nodes:
        if node.state is NodeState.DOWN:
            log, known_lsn = world.invariants.log_of(node), node.disk.control.commit_lsn
            starts = [
                start_lsn
                for start_lsn, end_lsn in zip(log.starts, log.ends, strict=True)
                if end_lsn <= known_lsn and start_lsn % PAGE_SIZE <= PAGE_SIZE - HEADER_BYTES
            ]
            if starts:
                node.disk.rot(random.choice(starts) + random.randrange(HEADER_BYTES))
                return


# ---- network


def break_connections(world: World, random: Random) -> None:
    connections = list(world.network.connections.values())
    for connection in random.sample(connections, min(len(connections), random.choice((1, 1, 3)))):
        world.network.break_connection(connection)


def partition(world: World, random: Random) -> None:
    """Some pairs cannot talk, in one direction or in both, for some time."""
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
    """A leader and one safekeeper on one side, the others and a rival on the other; when it heals,
    both leaders may be gone, and whoever comes next finds two logs that went apart."""
    leaders = [process for process in world.running() if process.is_leading]
    if not leaders:
        return
    place, alone = random.choice(leaders).place, random.choice(world.nodes)
    cuts = {
        (other, node.number, way)
        for other in PLACES
        for node in world.nodes
        for way in (True, False)
        if (other == place) != (node is alone)
    }
    world.network.cuts |= cuts
    rival(world, random)
    ends_us = random.choice((20_000, 60_000, 150_000))
    world.clock.call_later(ends_us, world.heal, cuts)
    if random.random() < 0.7:
        world.clock.call_later(ends_us, world.kill_all)


def slow_network(world: World, random: Random) -> None:
    world.network.delay_factor = random.choice((3, 10, 30))
    world.clock.call_later(_some_time(random), world.calm_network)


def wild_network(world: World, random: Random) -> None:
    world.network.chance_of_loss = random.choice((0.0, 0.01, 0.05))
    world.network.chance_of_copy = random.choice((0.0, 0.01, 0.05))
    world.clock.call_later(_some_time(random), world.calm_network)


def _some_time(random: Random) -> int:
    """From an instant to longer than any time-out."""
    return random.choice((1000, 20_000, 100_000, 100_000, 700_000))


PLACES = (0, 1, 2)

WEIGHTS: dict[str, float] = {
    "rival": 10, "kill_proposer": 3, "crash_proposer": 3, "pause_proposer": 2, "crash_primary": 3,
    "failover": 3, "roll_back_primary": 3,
    "lose_power": 4, "lose_power_everywhere": 0.5, "crash_node": 4, "crash_truncating_node": 2,
    "kill_node": 2, "pause_node": 2, "fail_disk": 3, "rot": 1,
    "break_connections": 6, "partition": 5, "strand_leader": 4, "split": 5, "slow_network": 1,
    "wild_network": 1,
}  # fmt: skip

KINDS: dict[str, Callable[[World, Random], None]] = {name: globals()[name] for name in WEIGHTS}
