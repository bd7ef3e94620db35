"""Faults of a limbo: the plan of a seed, and the faults that chance makes too rarely.

Each seed is steered to one of the shapes in which a mistake of the limbo shows (`FOCI`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from .faults import Fault, Plan
from .incarnation import Incarnation

if TYPE_CHECKING:
    from .limbo_primary import LimboPrimary
    from .limbo_world import LimboWorld

#: Faults of safekeepers, which other worlds test, mostly become one of these, or the focus.
LIMBO_FAULTS = (
    "crash_primary", "failover", "failover", "promote_ahead", "rival", "race", "kill_proposer",
    "crash_proposer", "pause_proposer", "strand_leader", "split", "stall_quorum",
    "promote_behind_a_leader", "stall_at_prepare", "move_process", "crash_before_prepare",
)  # fmt: skip
REPLACED = (
    "rot", "rot_running", "wipe", "fail_disk", "crash_truncating_node", "lose_power_everywhere",
    "bulk_load", "slow_flush", "lose_power", "crash_node",
)  # fmt: skip
FOCI = (
    "none", "failover", "promote_behind_a_leader", "stall_at_prepare", "move_process",
    "crash_before_prepare",
)  # fmt: skip


class LimboPlan(Plan):
    """`Plan.of` with other faults."""

    @classmethod
    def of(cls, seed: int) -> Plan:
        plan, random = Plan.of(seed), Random(f"limbo {seed}")
        focus = random.choice(FOCI)
        faults = tuple(_of_limbo(fault, focus, random) for fault in plan.faults)
        return replace(plan, faults=faults, focus=focus, is_restoring=False)


def _of_limbo(fault: Fault, focus: str, random: Random) -> Fault:
    is_replaced = random.random() < (0.9 if fault.kind in REPLACED else 0.2)
    if not is_replaced and fault.kind != "roll_back_primary":
        return fault
    is_of_focus = focus != "none" and random.random() < 0.4
    return replace(fault, kind=focus if is_of_focus else random.choice(LIMBO_FAULTS))


def crash_primary(world: LimboWorld, random: Random) -> None:
    """It loses its unflushed WAL and its sessions."""
    primary = _some_attached(world, random)
    if primary is not None:
        world.crash(primary, random.choice((1000, 20_000, 100_000, 700_000)))


def crash_before_prepare(world: LimboWorld, random: Random) -> None:
    """When the next transaction has its gid: its WAL is not flushed, and its xid is assigned
    again."""
    primary = _some_attached(world, random)
    if primary is not None:
        primary.crashes_before_prepare = True


def stall_quorum(world: LimboWorld, random: Random) -> None:
    """A leader reaches less than a quorum, longer than any deadline; its primary continues."""
    process = _some_leader(world, random)
    if process is not None:
        stall(world, process, random)


def stall_at_prepare(world: LimboWorld, random: Random) -> None:
    """The same, when the quorum has all WAL before the next PREPARE."""
    process = _some_leader(world, random)
    if process is not None:
        process.primary.stalls_at_prepare = True


def promote_behind_a_leader(world: LimboWorld, random: Random) -> None:
    """A leader is cut off from all, and its primary writes nothing; so it keeps its old state while
    another primary is promoted."""
    process = _some_leader(world, random)
    if process is None:
        return
    primary = process.primary
    primary.is_quiet = True
    primary.flush()
    cuts = {(process.place, node.number, way) for node in world.nodes for way in (True, False)}
    lasts_us = random.choice((300_000, 1_000_000))
    world.clock.call_later(30_000, world.cut, cuts)
    world.clock.call_later(40_000, world.complete_log)
    world.clock.call_later(lasts_us, world.heal, cuts)
    world.clock.call_later(lasts_us, primary.speak_again)


def move_process(world: LimboWorld, random: Random) -> None:
    """A primary that had written WAL that no quorum has is lost. Its proposer's process continues,
    and connects to the newly promoted primary, as if the address had moved."""
    process = _some_leader(world, random)
    if process is None:
        return
    stall(world, process, random)
    lasts_us = random.choice((50_000, 150_000))
    world.clock.call_later(lasts_us, _lose, world, process.primary)
    world.clock.call_later(lasts_us + 1000, world.complete_log)


def _lose(world: LimboWorld, primary: LimboPrimary) -> None:
    if not primary.is_down and not world.is_calm:
        world.crash(primary, 100_000)


def stall(world: LimboWorld, process: Incarnation, random: Random) -> None:
    """From now on it reaches less than a quorum."""
    nodes = random.sample(world.nodes, len(world.nodes) // 2 + 1)
    cuts = {(process.place, node.number, way) for node in nodes for way in (True, False)}
    world.cut(cuts)
    world.clock.call_later(random.choice((50_000, 300_000, 1_000_000)), world.heal, cuts)


def _some_leader(world: LimboWorld, random: Random) -> Incarnation | None:
    leaders = [p for p in world.running() if p.is_leading and p.primary is not None]
    return random.choice(leaders) if leaders else None


def _some_attached(world: LimboWorld, random: Random) -> LimboPrimary | None:
    found = [p.primary for p in world.running() if p.primary is not None]
    found = [primary for primary in found if not primary.is_down]
    return random.choice(found) if found else None


OWN_FAULTS: dict[str, Callable[[LimboWorld, Random], None]] = {
    "crash_primary": crash_primary,
    "crash_before_prepare": crash_before_prepare,
    "stall_quorum": stall_quorum,
    "stall_at_prepare": stall_at_prepare,
    "promote_behind_a_leader": promote_behind_a_leader,
    "move_process": move_process,
}
