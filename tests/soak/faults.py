"""The faults: what each does to the world, how it ends, and the random order in which they come.

Every kind strikes every target in its turn, like a deck that is shuffled again when it is used up;
and among the others, at even distances, the primary is lost in one of four ways.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from pg_fixtures.processes import ServiceProcess
from pg_fixtures.proxy import TcpProxy

from .world import Loss, World

DELAY_SECONDS = 0.1  # each way
TERMINATE_TIMEOUT = 20.0

KILL, PAUSE, RESTART = "kill -9", "pause", "restart in good order"
CUT, STALL, DELAY = "cut", "stall", "delay"
FULL_DISK = "full disk"


@dataclass(frozen=True, slots=True)
class Fault:
    """`begin` and `end` are called once each, about `seconds_max` apart or less.

    `touches`: whatever these names stand for has one fault at a time. `outlasts_failover`: it
    befalls a safekeeper, whoever is the primary.
    """

    kind: str
    subject: str
    touches: frozenset[str]
    seconds_max: float
    begin: Callable[[], None]
    end: Callable[[], None]
    outlasts_failover: bool = False

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


def deal(world: World, rng: random.Random) -> Iterator[Fault | Loss]:
    """For ever."""
    while True:
        faults = deck(world)
        rng.shuffle(faults)
        losses = list(Loss)
        rng.shuffle(losses)
        share = -(-len(faults) // len(losses))
        for number, loss in enumerate(losses):
            yield from faults[number * share : (number + 1) * share]
            yield loss


def deck(world: World) -> list[Fault]:
    """One of each; whose primary and wires those are is seen when it begins."""
    faults = [*_of_machines(world), *_of_wires(world)]
    for safekeeper in world.safekeepers:
        faults += _of_service(
            safekeeper.name, partial(lambda service: service, safekeeper), outlasts_failover=True
        )
    faults += [
        _fault(FULL_DISK, f"disk {number}", 12.0, disk.fill, disk.free, outlasts_failover=True)
        for number, disk in enumerate(world.disks, 1)
    ]
    return faults


def _fault(
    kind: str,
    subject: str,
    seconds_max: float,
    begin: Callable[[], None],
    end: Callable[[], None],
    *,
    outlasts_failover: bool = False,
) -> Fault:
    touches = frozenset({subject})
    return Fault(kind, subject, touches, seconds_max, begin, end, outlasts_failover)


def _of_service(
    subject: str, find: Callable[[], ServiceProcess], *, outlasts_failover: bool
) -> list[Fault]:
    def terminate() -> None:
        find().terminate(TERMINATE_TIMEOUT)

    def pause() -> None:
        if find().alive:  # a proposer may have ended by itself, for want of a primary
            find().pause()

    def resume() -> None:
        if find().alive:
            find().resume()

    def kill() -> None:
        find().kill()

    def start() -> None:
        find().start()

    acts = [(KILL, 4.0, kill, start), (PAUSE, 6.0, pause, resume), (RESTART, 0.0, terminate, start)]
    return [
        _fault(kind, subject, seconds_max, begin, end, outlasts_failover=outlasts_failover)
        for kind, seconds_max, begin, end in acts
    ]


def _of_machines(world: World) -> list[Fault]:
    def proposer() -> ServiceProcess:
        found = world.primary.proposer
        assert found is not None
        return found

    return [
        *_of_service("proposer", proposer, outlasts_failover=False),
        _fault(
            KILL, "primary", 3.0,
            lambda: world.primary.postgres.crash(), lambda: world.primary.postgres.start(),
        ),
        _fault(
            PAUSE, "primary", 4.0,
            lambda: world.primary.pause_postgres(), lambda: world.primary.resume_postgres(),
        ),
        _fault(
            RESTART, "primary", 0.0,
            lambda: world.primary.stop_postgres(), lambda: world.primary.postgres.start(),
        ),
        _fault(
            KILL, "standby", 4.0,
            lambda: world.standby.postgres.crash(), lambda: world.standby.postgres.start(),
        ),
    ]  # fmt: skip


def _of_wires(world: World) -> list[Fault]:
    """Of the primary's machine: one wire, or all."""

    def on(ids: tuple[int, ...], act: Callable[[TcpProxy], None]) -> Callable[[], None]:
        def strike() -> None:
            for id in ids:
                act(world.primary.wires[id - 1])

        return strike

    acts: dict[str, Callable[[TcpProxy], None]] = {
        CUT: TcpProxy.cut,
        STALL: TcpProxy.stall,
        DELAY: lambda wire: wire.delay(DELAY_SECONDS),
    }
    each = [(safekeeper.id,) for safekeeper in world.safekeepers]
    everybody = tuple(safekeeper.id for safekeeper in world.safekeepers)
    return [
        Fault(
            kind,
            "all wires of the primary" if ids == everybody else f"wire to safekeeper {ids[0]}",
            frozenset(f"wire {id}" for id in ids),
            6.0,
            on(ids, act),
            on(ids, TcpProxy.restore),
        )
        for kind, act in acts.items()
        for ids in (*each, everybody)
    ]
