"""The faults: the effect and the end of each, and the random order in which they come.

Every kind hits every target in turn, like a deck that is shuffled again when it is used up. In
between, at even distances, the primary is lost in one of four ways.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from quorum_wal.pg_fixtures.failing_disk import FailingDisk
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_fixtures.waiting import wait_until

from .rot import RottenDisk
from .told import Truth, commits_proceed, commits_wait, member_is, one_is_missed
from .world import WAL_SEG_SIZE, Loss, World

DELAY_SECONDS = 0.1  # in each way
SLOW_SYNC_MS = 200
TERMINATE_TIMEOUT = 20.0
MENDING_TIMEOUT = 120.0

KILL, PAUSE, RESTART = "kill -9", "pause", "restart in good order"
CUT, STALL, DELAY = "cut", "stall", "delay"
FULL_DISK, SLOW_DISK = "full disk", "slow disk"
WIPED, ROT, TAIL_ROT = "wiped", "bit rot", "bit rot near the end of the log"


@dataclass(frozen=True, slots=True)
class Fault:
    """`begin` and `end` are called once each, at most about `seconds_max` apart.

    `touches`: each of these parts has one fault at a time. `outlasts_failover`: it affects a
    safekeeper, with any primary. `truth`: what `sk status` must report while it lasts and nothing
    else is wrong; None if it is too short. `alone`: no other fault at the same time.
    """

    kind: str
    subject: str
    touches: frozenset[str]
    seconds_max: float
    begin: Callable[[], None]
    end: Callable[[], None]
    outlasts_failover: bool = False
    truth: Truth | None = None
    alone: bool = False

    @property
    def is_of_proposer(self) -> bool:
        """The proposer is down because of the fault: it is not started again."""
        return "proposer" in self.touches

    def __str__(self) -> str:
        return f"{self.kind}: {self.subject}"


def deal(world: World, rng: random.Random) -> Iterator[Fault | Loss]:
    """Without end."""
    while True:
        faults = deck(world, rng)
        rng.shuffle(faults)
        losses = list(Loss)
        rng.shuffle(losses)
        share = -(-len(faults) // len(losses))
        for number, loss in enumerate(losses):
            yield loss
            yield from faults[number * share : (number + 1) * share]


def deck(world: World, rng: random.Random) -> list[Fault]:
    """One of each; the primary and the wires are those at the beginning of the fault."""
    faults = [*_of_machines(world), *_of_wires(world)]
    for safekeeper in world.safekeepers:
        faults += _of_service(
            safekeeper.name,
            partial(lambda service: service, safekeeper),
            outlasts_failover=True,
            truth=member_is(safekeeper.id, "unreachable"),
        )
        faults += _of_rot(RottenDisk(safekeeper, WAL_SEG_SIZE, rng))
    for number, disk in enumerate(world.disks, 1):
        truth = member_is(number, "stopped")
        faults.append(
            Fault(
                FULL_DISK, f"disk {number}", frozenset({f"disk {number}"}), 12.0,
                disk.fill, disk.free, outlasts_failover=True, truth=truth,
            )
        )  # fmt: skip
    faults += [_of_slowness(number, disk) for number, disk in enumerate(world.failing_disks, 1)]
    return faults


def _of_slowness(number: int, disk: FailingDisk) -> Fault:
    return Fault(
        SLOW_DISK, f"disk {number}", frozenset({f"slowness {number}"}), 6.0,
        lambda: disk.slow_sync(SLOW_SYNC_MS), disk.restore,
        outlasts_failover=True, truth=commits_proceed,
    )  # fmt: skip


def _of_rot(disk: RottenDisk) -> list[Fault]:
    """The cluster repairs the damage by itself. Not two members at once: WAL that a quorum has lost
    is lost."""
    safekeeper = disk.safekeeper
    touches = frozenset({safekeeper.name, "rot"})

    def await_mending() -> None:
        wait_until(lambda: disk.is_mended, MENDING_TIMEOUT, f"{safekeeper.name} to be mended")

    return [
        Fault(
            ROT, safekeeper.name, touches, 0.0,
            disk.rot_cold, await_mending, truth=commits_proceed, alone=True,
        ),
        Fault(
            TAIL_ROT, safekeeper.name, touches, 0.0,
            disk.rot_tail, await_mending, truth=commits_proceed, alone=True,
        ),
        Fault(
            WIPED, safekeeper.name, touches, 10.0,
            disk.wipe, disk.give_back, truth=member_is(safekeeper.id, "lost its data"),
        ),
    ]  # fmt: skip


def _of_service(
    subject: str,
    find: Callable[[], ServiceProcess],
    *,
    outlasts_failover: bool = False,
    truth: Truth,
) -> list[Fault]:
    def terminate() -> None:
        find().terminate(TERMINATE_TIMEOUT)

    def pause() -> None:
        if find().alive:  # the proposer may have exited, because it had no primary
            find().pause()

    def resume() -> None:
        if find().alive:
            find().resume()

    def kill() -> None:
        find().kill()

    def start() -> None:
        find().start()

    touches = frozenset({subject})
    return [
        Fault(KILL, subject, touches, 4.0, kill, start, outlasts_failover, truth),
        Fault(PAUSE, subject, touches, 6.0, pause, resume, outlasts_failover, truth),
        Fault(RESTART, subject, touches, 0.0, terminate, start, outlasts_failover),
    ]


def _of_machines(world: World) -> list[Fault]:
    def proposer() -> ServiceProcess:
        found = world.primary.proposer
        assert found is not None
        return found

    def of_host(
        kind: str,
        subject: str,
        seconds_max: float,
        begin: Callable[[], None],
        end: Callable[[], None],
        truth: Truth | None = None,
    ) -> Fault:
        return Fault(kind, subject, frozenset({subject}), seconds_max, begin, end, truth=truth)

    return [
        *_of_service("proposer", proposer, truth=commits_wait),
        of_host(
            KILL, "primary", 3.0, lambda: world.primary.postgres.crash(),
            lambda: world.primary.postgres.start(), commits_wait,
        ),
        of_host(
            PAUSE, "primary", 4.0, lambda: world.primary.pause_postgres(),
            lambda: world.primary.resume_postgres(), commits_wait,
        ),
        of_host(
            RESTART, "primary", 0.0, lambda: world.primary.stop_postgres(),
            lambda: world.primary.postgres.start(),
        ),
        of_host(
            KILL, "standby", 4.0, lambda: world.standby.postgres.crash(),
            lambda: world.standby.postgres.start(), commits_proceed,
        ),
    ]  # fmt: skip


def _of_wires(world: World) -> list[Fault]:
    """One wire of the primary's machine, or all."""

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
            truth=_truth_of_wires(kind, is_one=ids != everybody),
        )
        for kind, act in acts.items()
        for ids in (*each, everybody)
    ]


def _truth_of_wires(kind: str, *, is_one: bool) -> Truth:
    if kind == DELAY:
        return commits_proceed
    return one_is_missed if is_one else commits_wait
