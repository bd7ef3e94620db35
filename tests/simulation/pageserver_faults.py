"""The faults of pageservers: the plan of a seed."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from quorum_wal.pageserver.attachments.attachment_events import Mode

from .faults import Fault, Plan

if TYPE_CHECKING:
    from .pageserver_emergency import Emergency
    from .pageserver_world import PageserverWorld


class PageserverPlan(Plan):
    """A `Plan` with faults of this kind of world."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        random = Random(f"pageserver plan {seed}")
        horizon_us = random.choice((150_000, 300_000, 500_000))
        focus = random.choice(list(FOCI))
        weights = [
            FOCUS_WEIGHT if kind in FOCI[focus] else weight * random.choice((0, 0.3, 1, 3))
            for kind, weight in WEIGHTS.items()
        ]
        count = random.choice((4, 10, 25))
        kinds = random.choices(list(WEIGHTS), weights, k=count)
        times = sorted(random.randrange(10_000, horizon_us) for _ in kinds)
        return Plan(
            focus=focus,
            nodes_count=3,
            is_restoring=False,
            is_wild=False,
            write_us=0,
            horizon_us=horizon_us,
            faults=tuple(
                Fault(at_us, kind, random.getrandbits(32))
                for at_us, kind in zip(times, kinds, strict=True)
            ),
        )


def kill(world: PageserverWorld, random: Random) -> None:
    """It starts again within moments."""
    if running := world.running():
        random.choice(running).kill()


def kill_between_actions(world: PageserverWorld, random: Random) -> None:
    if running := world.running():
        process = random.choice(running)
        process.actions_left, process.freeze_us = random.randrange(12), 0


def freeze(world: PageserverWorld, random: Random) -> None:
    if running := [process for process in world.running() if not process.is_frozen]:
        random.choice(running).freeze(_some_time(random))


def freeze_between_actions(world: PageserverWorld, random: Random) -> None:
    if running := [process for process in world.running() if not process.is_frozen]:
        process = random.choice(running)
        process.actions_left, process.freeze_us = random.randrange(12), _some_time(random)


def replace_node(world: PageserverWorld, random: Random) -> None:
    """Another process with its node id is started while it runs, as a StatefulSet may do."""
    running = world.running()
    if running and len(running) < 6:
        process = random.choice(running)
        if random.random() < 0.5 and not process.is_frozen:
            process.freeze(_some_time(random))
        world.start(process.node_id)


def move(world: PageserverWorld, random: Random) -> None:
    tenant, node_id = _some_move(world, random)
    if random.random() < 0.3:
        freeze(world, random)
    world.move(tenant, node_id, Mode.SINGLE)


def migrate(world: PageserverWorld, random: Random) -> None:
    """As a move, but the previous one serves reads for some time."""
    tenant, node_id = _some_move(world, random)
    if world.service.state.tenants[tenant].mode is not Mode.MULTI:
        world.move(tenant, node_id, Mode.MULTI)
        world.clock.call_later(random.choice((100_000, 250_000)), world.settle, tenant)


def _some_move(world: PageserverWorld, random: Random) -> tuple[bytes, int]:
    """A tenant, and a node that it is not on."""
    state = world.service.state
    tenant = random.choice(sorted(state.tenants))
    others = [node_id for node_id in state.nodes if node_id != state.tenants[tenant].node_id]
    return tenant, random.choice(others)


def service_down(world: PageserverWorld, random: Random) -> None:
    world.service.is_down = True
    world.clock.call_later(_some_time(random), _service_up, world)


def _service_up(world: PageserverWorld) -> None:
    world.service.is_down = False


def service_slow(world: PageserverWorld, random: Random) -> None:
    world.service.delays_us = random.choice(((5_000, 30_000), (500, 60_000)))
    world.clock.call_later(_some_time(random), _service_fast, world)


def _service_fast(world: PageserverWorld) -> None:
    world.service.delays_us = (500, 1000, 2000)


def copy_service(world: PageserverWorld, _: Random) -> None:
    world.service.take_copy()


def put_service_back(world: PageserverWorld, random: Random) -> None:
    """It is restored from an older copy, and a process starts with numbers that it assigns."""
    world.service.put_back()
    for tenant in world.service.state.tenants:
        world.settle(tenant)
    if random.random() < 0.7:
        replace_node(world, random)
    if random.random() < 0.3:
        move(world, random)


def emergency(world: PageserverWorld, random: Random) -> None:
    """A process starts without the service: the service is down, or only this process cannot reach
    it, and the others continue with it."""
    world.service.is_down = random.random() < 0.5
    node_id = random.choice(sorted(world.service.state.nodes))
    found = world.start_in_emergency(node_id)
    world.clock.call_later(_some_time(random), _emergency_ends, world, found)


def _emergency_ends(world: PageserverWorld, found: Emergency) -> None:
    """It continues with the service; or it is stopped, and another one is started."""
    world.service.is_down = False
    if world.random.random() < 0.5:
        found.tell()
    else:
        world.operator_advances()
        found.process.kill()


def move_during_validation(world: PageserverWorld, random: Random) -> None:
    """Claims have been listed, but the answer is late, and meanwhile there is another claim."""
    world.claims_unheard_us = random.choice((30_000, 80_000))
    world.clock.call_later(100_000, _claims_heard, world)
    world.clock.call_later(random.choice((5_000, 20_000)), move, world, random)


def _claims_heard(world: PageserverWorld) -> None:
    world.claims_unheard_us = 0


def late_claim(world: PageserverWorld, random: Random) -> None:
    """A process starts slowly in an emergency, while others continue with the service."""
    node_id = random.choice(sorted(world.service.state.nodes))
    found = world.start_in_emergency(node_id)
    found.process.claim_us = random.choice((20_000, 60_000))
    world.clock.call_later(_some_time(random), _emergency_ends, world, found)


def delete_timeline(world: PageserverWorld, random: Random) -> None:
    """Not the last one of all."""
    left = [t for t in world.timelines if t not in world.service.state.deleted]
    if len(left) > 1:
        world.delete_timeline(random.choice(left))


def bad_store(world: PageserverWorld, random: Random) -> None:
    before, world.chance_of_fault = world.chance_of_fault, 0.5
    world.clock.call_later(_some_time(random), _store_as, world, before)


def _store_as(world: PageserverWorld, chance_of_fault: float) -> None:
    world.chance_of_fault = chance_of_fault


def _some_time(random: Random) -> int:
    return random.choice((5_000, 30_000, 60_000, 150_000))


WEIGHTS: dict[str, float] = {
    "kill": 3, "kill_between_actions": 6, "freeze": 3, "freeze_between_actions": 6,
    "replace_node": 4, "move": 5, "migrate": 3, "service_down": 2, "service_slow": 2,
    "copy_service": 2, "put_service_back": 2, "emergency": 2,
    "move_during_validation": 2, "late_claim": 1,
    "delete_timeline": 0.7, "bad_store": 3,
}  # fmt: skip

#: A shape that chance makes too rarely, and the faults that cause it together.
FOCI: dict[str, tuple[str, ...]] = {
    "none": ("kill",),
    "copies of the service": ("copy_service", "put_service_back", "replace_node"),
    "migrations": ("migrate",),
    "moves": ("move_during_validation", "freeze_between_actions"),
    "replaced nodes": ("replace_node", "kill_between_actions", "service_slow"),
    "emergencies": ("emergency", "late_claim"),
}
#: The number of each of these faults.
FOCUS_WEIGHT = 15

KINDS: dict[str, Callable[[PageserverWorld, Random], None]] = {
    name: globals()[name] for name in WEIGHTS
}
