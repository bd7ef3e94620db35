"""`sk member` refuses harmful changes with one error, and changes nothing.

This includes force: it is allowed only when a quorum is lost for good.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from members_world import TIMEOUT, MembersWorld
from sk_command import Done, assert_refused, assert_wrong_usage, sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster, flush_lsn
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until

NOBODY = "127.0.0.1:1"  # refuses every connection
LedgerOf = Callable[[QuorumCluster], Ledger]


@pytest.fixture
def world(cluster: QuorumCluster) -> Iterator[MembersWorld]:
    """On the cluster of this file, whose members do not change."""
    with ExitStack() as stack:
        yield MembersWorld(cluster, stack)


@pytest.fixture
def lone_world(quorum_cluster: Callable[..., QuorumCluster]) -> Iterator[MembersWorld]:
    """On a cluster of its own, which a test may destroy."""
    with ExitStack() as stack:
        yield MembersWorld(quorum_cluster(safekeepers=3, wal_seg_size=1 << 20), stack)


def durable_state(world: MembersWorld) -> list[Any]:
    """Everything that a change would change."""
    timelines = [keeper.timeline() for keeper in world.keepers.values() if keeper.alive]
    return [t and (t["membership"], t["state"], t["promised"]) for t in timelines]


def assert_unchanged(
    world: MembersWorld, run: Callable[[], Done], sentence: str, hint: str, exit_code: int = 1
) -> None:
    before = durable_state(world)
    assert_refused(run(), exit_code, sentence, hint)
    assert durable_state(world) == before


def test_wrong_usage(world: MembersWorld) -> None:
    assert_wrong_usage(world.member("add"), "Missing argument 'ADDRESS...'")
    assert_wrong_usage(world.member("add", "host:port"), "host:port")
    assert_wrong_usage(world.member("remove", "x"), "not a valid integer")
    assert_wrong_usage(world.member("remove", "0"), "0 is not in the range")
    assert_wrong_usage(world.member("replace", "3"), "Missing argument 'ADDRESS'")


def test_a_newcomer_that_does_not_answer(world: MembersWorld) -> None:
    refused = "could not connect to safekeeper 127.0.0.1:1"
    for arguments in (("add", NOBODY), ("replace", 3, NOBODY), ("move", 3, NOBODY)):
        run = partial(world.member, *arguments)
        assert_unchanged(world, run, refused, "Start it", exit_code=4)


def test_a_newcomer_with_the_id_of_a_member(world: MembersWorld) -> None:
    """It has another disk, without the promises of the member."""
    folder = world.cluster.root / "another-3"
    with SafekeeperProcess(3, folder) as another:
        for arguments in (
            ("add", another.address),
            ("replace", 3, another.address),
            ("replace", 2, another.address),
            ("move", 3, another.address),
        ):
            run = partial(world.member, *arguments)
            assert_unchanged(world, run, "another data directory", "sk member replace 3")


def test_two_newcomers_with_one_id(world: MembersWorld) -> None:
    world.new_keeper(4)
    with SafekeeperProcess(4, world.cluster.root / "another-4") as another:
        run = partial(world.member, "add", world.address(4), another.address)
        assert_unchanged(world, run, "have the same id 4", "--id")
    assert world.members() == [1, 2, 3]


def test_what_does_not_fit_the_members(world: MembersWorld) -> None:
    second = world.address(2)
    assert_unchanged(
        world, lambda: world.member("replace", 3, second), "is already a member", "remove 3"
    )
    assert_unchanged(
        world, lambda: world.member("replace", 2, second), "replace itself", "sk member move"
    )
    assert_unchanged(world, lambda: world.member("move", 3, second), "2 is at", "sk member replace")
    assert_unchanged(
        world, lambda: world.member("remove", 1, 2, 3), "the last one", "sk member replace"
    )
    assert_unchanged(world, lambda: world.member("cancel"), "no change is under way", "")
    unknown = world.member("list", "--timeline", "f" * 32)
    assert_refused(unknown, 1, "no safekeeper that answers has timeline", "sk timeline list")


def test_a_completed_change_is_reported_as_done(world: MembersWorld) -> None:
    before = durable_state(world)
    for arguments in (("add", world.address(3)), ("remove", 9), ("move", 3, world.address(3))):
        assert "nothing to change: it has members 1, 2, 3" in world.change(*arguments)
    assert durable_state(world) == before


def test_a_dry_run_changes_nothing(world: MembersWorld) -> None:
    world.new_keeper(4)
    before = durable_state(world)
    out = world.change("replace", 3, world.address(4), "--dry-run")
    assert out.splitlines()[1:] == [
        "members 1, 2, 3 -> 1, 2, 4",
        f"1. safekeeper 4 ({world.address(4)}) receives the log, and is not counted until it "
        "has caught up",
        "2. each commit needs a quorum of 1, 2, 3 and one of 1, 2, 4",
        "3. the members are 1, 2, 4",
        "4. safekeeper 3 is informed that it has left, and deletes its WAL",
    ]
    done = world.member("add", world.address(4), "--dry-run")
    assert "warning: 4 members tolerate the loss of 1, no more than 3 would" in done.stderr
    assert durable_state(world) == before
    assert world.state_on(4) == ""


def test_less_than_a_quorum_alive(world: MembersWorld) -> None:
    """Of the requested set, while commits continue; of the present set, while none returns."""
    world.new_keeper(4)
    world.keepers[3].kill()
    run = partial(world.member, "remove", 2)
    assert_unchanged(world, run, "commits would wait for ever: only 1 of the 2", "sk member")
    world.keepers[2].kill()
    run = partial(world.member, "replace", 3, world.address(4), known=(1,))
    assert_unchanged(world, run, "no quorum: only 1 of the 3 members present", "sk member force")


# ---- force


def lose_two(world: MembersWorld) -> None:
    """The disks of 1 and 3 are lost, and so is the machine of the primary."""
    world.cluster.wait_flushed(world.cluster.postgres.flush_lsn(), TIMEOUT)
    world.cluster.kill_all()
    for id in (1, 3):
        shutil.rmtree(world.keepers[id].data_dir)
    world.keepers[2].start()
    world.keepers[2].wait_ready()


def force(world: MembersWorld, *arguments: object, stdin: str = "") -> Done:
    options = world.options(1, 2, 3)
    return sk("member", "force", *options, *arguments, stdin=stdin)


def test_force_is_refused_while_it_is_not_needed(world: MembersWorld) -> None:
    assert_unchanged(world, lambda: force(world, 3), "a proposer", "Stop it first")
    world.cluster.proposer.terminate()
    wait_until(
        lambda: all((k.timeline() or {})["proposer"] is None for k in world.keepers.values()),
        TIMEOUT,
        "the proposer to be gone",
    )
    assert_unchanged(
        world, lambda: force(world, 3), "a quorum of the members answers", "sk member replace"
    )
    world.cluster.proposer.start()
    world.cluster.proposer.wait_streaming()


def test_force_names_all_that_are_lost_and_asks(lone_world: MembersWorld) -> None:
    world = lone_world
    lose_two(world)
    assert_unchanged(world, lambda: force(world), "was not named as destroyed", "sk member force 1")
    assert_unchanged(world, lambda: force(world, 1), "3", "sk member force 1 3")
    assert_unchanged(world, lambda: force(world, 1, 2, 3), "2 answers", "leave it out")
    assert_unchanged(world, lambda: force(world, 1, 3), "not confirmed", '"destroyed"')
    before = durable_state(world)
    mistyped = force(world, 1, 3, stdin="yes\n")
    assert (mistyped.returncode, "not confirmed" in mistyped.stderr) == (1, True)
    dry = force(world, 1, 3, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "Kept: the log of safekeeper 2" in dry.stdout
    assert "must never come back" in dry.stdout
    assert durable_state(world) == before


def test_a_quorum_is_lost_for_good(lone_world: MembersWorld, ledger_of: LedgerOf) -> None:
    """The remaining one continues alone, with all its WAL; then two others are added."""
    world, cluster = lone_world, lone_world.cluster
    ledger = ledger_of(cluster)
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    lose_two(world)
    end_lsn = flush_lsn(world.keepers[2])
    done = force(world, 1, 3, stdin="destroyed\n")
    assert done.returncode == 0, done.stderr
    assert "is the only member" in done.stdout
    assert "MEMBERS FORCED" in world.keepers[2].log_text()
    assert flush_lsn(world.keepers[2]) == end_lsn
    again = force(world, 1, 3, "--yes")
    assert_refused(again, 1, "a quorum of the members answers", "sk member replace")

    cluster.postgres.start()
    proposer = cluster.new_proposer(arguments=["--safekeepers", world.address(2)])
    with cluster.led_by(proposer), proposer:
        proposer.wait_streaming()
        ledger.resume()
        world.new_keeper(4)
        world.new_keeper(5)
        world.change("add", world.address(4), world.address(5), known=(2,))
        world.reckon(ledger, 2, 4, 5)
        shown = sk("member", "list", *world.options(2)).stdout
        assert "the members were forced once" in shown
        status = json.loads(sk("status", *world.options(2), "--json").stdout)
        assert [m["forced"] for m in status["timelines"][0]["members"]] == [True, True, True]


def test_force_continues_after_a_crash(lone_world: MembersWorld) -> None:
    """Two of five members are left. The second one learns of it in the second run."""
    world = lone_world
    world.new_keeper(4)
    world.new_keeper(5)
    world.change("add", world.address(4), world.address(5))
    world.wait_members(1, 2, 3, 4, 5)
    world.cluster.wait_flushed(
        world.cluster.postgres.flush_lsn(), TIMEOUT, list(world.keepers.values())
    )
    world.cluster.kill_all()
    for id in (3, 4, 5):
        world.wipe(id)
    for id in (1, 2):
        world.keepers[id].start()
        world.keepers[id].wait_ready()
    world.keepers[2].pause()
    half = force(world, 2, 3, 4, 5, "--yes")  # not true; the second run corrects it
    assert half.returncode == 0, half.stderr
    world.keepers[2].resume()
    rest = sk("member", "force", *world.options(1, 2), "3", "4", "5", "--yes")
    assert rest.returncode == 0, rest.stderr
    assert "is already the only member" in rest.stdout
    for id in (1, 2):
        timeline = world.keepers[id].timeline()
        assert timeline is not None
        assert timeline["membership"]["members"] == [1]
        assert timeline["forced"]
