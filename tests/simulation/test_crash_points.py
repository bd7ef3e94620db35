"""One change of the members, and an end of one process after each of its actions.

A leader replaces a member; it, or a safekeeper, ends after that many actions, from the request on.
Then a new proposer that knows one old address must win, leave a joint membership, and commit: no
law of the world may break, nor that of rest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from structlog.testing import capture_logs

from quorum_wal.walproposer.stream.events import ChangeRequest, ChangeState

from .changing_plan import ChangingPlan
from .changing_world import ChangingWorld
from .incarnation import Incarnation
from .limits import small_limits
from .log import Log
from .node import Node

REQUEST_US, HORIZON_US = 100_000, 600_000
#: More actions than a change takes: a leader has finished it after 60 or so.
ACTIONS_MAX = 100

Choice = Callable[[ChangingWorld], Incarnation | Node | None]


def quiet_world(seed: int, members: int, spares: int) -> ChangingWorld:
    """Only requested faults happen."""
    plan = ChangingPlan(
        focus="none", nodes_count=members, is_restoring=False, is_wild=False, write_us=20_000,
        horizon_us=HORIZON_US, faults=(), spares_count=spares, set_size_max=5,
    )  # fmt: skip
    return ChangingWorld(seed, plan)


def request(world: ChangingWorld, *numbers: int) -> Incarnation:
    """The leader, which was asked for these members."""
    leader = the_leader(world)
    assert leader is not None
    membership = leader.core.membership
    assert membership is not None
    wanted = tuple(world.nodes[number - 1].as_member() for number in numbers)
    world.request(leader, ChangeRequest(membership.generation, wanted))
    return leader


def ends_after(count: int, choose: Choice) -> bool:
    """Whether it ended before the change was complete."""
    world = quiet_world(count, 3, 1)
    world.run_until(REQUEST_US)
    leader = request(world, 1, 2, 4)
    victim = choose(world)
    assert victim is not None
    victim.actions_left = count
    world.run()
    assert leader.core.change is not None
    return victim.actions_left is None or not getattr(victim, "is_alive", True)


def the_leader(world: ChangingWorld) -> Incarnation | None:
    return next((process for process in world.running() if process.is_leading), None)


def wait_until(world: ChangingWorld, holds: Callable[[], bool]) -> None:
    for _ in range(200):
        world.run_until(world.clock.now_us + REQUEST_US)
        if holds():
            return
    raise AssertionError("it does not go on")


def is_done(leader: Incarnation) -> bool:
    change = leader.core.change
    return change is not None and change.state is ChangeState.DONE


def node(number: int) -> Callable[[ChangingWorld], Node]:
    return lambda world: world.nodes[number - 1]


@pytest.mark.parametrize(
    "choose", [the_leader, node(1), node(3), node(4)], ids=["leader", "stays", "leaves", "comes"]
)
def test_an_end_after_each_action(choose: Choice) -> None:
    ends = 0
    with small_limits(), capture_logs():
        for count in range(0, ACTIONS_MAX, 1 if choose is the_leader else 2):
            ends += ends_after(count, choose)
    assert ends > 20  # otherwise it was never in the middle


def test_one_three_five_three_and_three_others() -> None:
    """A record is committed in every state, and a proposer from any address that was ever valid
    continues."""
    with small_limits(), capture_logs():
        for seed in range(7):
            grow_and_shrink(quiet_world(seed, 1, 7))


def grow_and_shrink(world: ChangingWorld) -> None:
    for numbers in ((1, 2, 3), (1, 2, 3, 4, 5), (3, 4, 5), (6, 7, 8)):
        wait_until(world, lambda: the_leader(world) is not None)
        leader, committed = request(world, *numbers), world.invariants.committed
        wait_until(world, partial(is_done, leader))
        assert leader.core.membership is not None
        assert leader.core.membership.members == numbers
        wait_until(world, partial(is_longer, committed, committed.lsn))
        leader.kill()  # the next one is started with one old address
    world.run()


def is_longer(log: Log, lsn: int) -> bool:
    return log.lsn > lsn


def test_a_rest_from_every_address() -> None:
    """From each address that was once valid: a safekeeper that has left leads to the members,
    too."""
    with small_limits(), capture_logs():
        for number in range(1, 5):
            world = quiet_world(1, 3, 1)
            world.run_until(REQUEST_US)
            request(world, 1, 2, 4)
            world.run_until(HORIZON_US)
            world.rests_from = world.nodes[number - 1].address
            world.run()
            assert [process.given for process in world.running()] == [(world.rests_from,)]
