"""Member changes among unexpected safekeepers: hung ones, ones with the wrong identity, ones of
another cluster, one named twice; and two operators at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from hand_written_proposer import HandWrittenProposer, lawful_greeting, named, timeline_id
from hand_written_proposer import command as ask
from members_world import TIMEOUT, MembersWorld
from sk_command import assert_refused, sk_json
from test_joining_commands import OFFER

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.join import encode_offer
from quorum_wal.consensus.membership import Membership
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until

ROWS = 50
STATES = ["joining", "catching up", "entered", "leaving", "telling", "done"]
ELSEWHERE = TimelineId(bytes(16), b"elsewhere".ljust(16))

LedgerOf = Callable[[QuorumCluster], Ledger]


@pytest.fixture
def world(quorum_cluster: Callable[..., QuorumCluster]) -> Iterator[MembersWorld]:
    with ExitStack() as stack:
        yield MembersWorld(quorum_cluster(safekeepers=3, wal_seg_size=1 << 20), stack)


# ---- one hangs


@pytest.mark.parametrize("hanging", [3, 2], ids=["it is the one", "it is another one"])
def test_a_member_is_replaced_while_one_hangs(
    world: MembersWorld, ledger_of: LedgerOf, hanging: int
) -> None:
    """It holds its connections open and answers nothing. When it continues, it reports its old
    state."""
    ledger = ledger_of(world.cluster)
    world.new_keeper(4)
    world.keepers[hanging].pause()
    world.change("replace", 3, world.address(4), known=(1,))
    ledger.wait_for_progress(ROWS, TIMEOUT)
    assert world.members(1) == [1, 2, 4]
    world.keepers[hanging].resume()
    world.wait_left(3)
    world.wait_members(1, 2, 4)
    world.reckon(ledger, 1, 2, 4)


def test_a_new_safekeeper_hangs_and_another_one_is_used(
    world: MembersWorld, ledger_of: LedgerOf
) -> None:
    """The request is given up. The one that continues later holds a log, but does not count."""
    ledger = ledger_of(world.cluster)
    world.new_keeper(4)
    world.new_keeper(5)
    command = world.begin("replace", 3, world.address(4))
    wait_until(lambda: world.change_state() not in ("", "joining"), TIMEOUT, "it to join")
    world.keepers[4].pause()
    ledger.wait_for_progress(ROWS, TIMEOUT)
    command.kill()
    world.member("cancel")  # the change may be complete already
    wait_until(lambda: is_at_rest(world), TIMEOUT, "the change to end")
    leaver = 3 if 3 in world.members() else 4
    world.change("replace", leaver, world.address(5))
    world.keepers[4].resume()
    world.wait_members(1, 2, 5)
    world.change("remove", 3, 4)  # informs the members that were absent
    world.wait_left(3 if leaver == 3 else 4)
    world.reckon(ledger, 1, 2, 5)


def is_at_rest(world: MembersWorld) -> bool:
    return world.change_state() in ("", "done", "refused", "gone back")


# ---- all die


@pytest.mark.parametrize("state", ["catching up", "entered", "leaving"])
def test_all_die_in_the_middle_of_a_change_of_all_members(
    world: MembersWorld, ledger_of: LedgerOf, state: str
) -> None:
    """All members, the new ones and the primary die. The returning proposer knows the old
    addresses; the same requests, one after another, lead to the same members."""
    ledger = ledger_of(world.cluster)
    for id in (4, 5):
        world.new_keeper(id)
    command = world.begin("add", world.address(4), world.address(5))
    late = STATES[STATES.index(state) :]
    wait_until(lambda: world.change_state() in late, TIMEOUT, f"the change to be {state}")
    command.kill()
    world.cluster.kill_all()
    for keeper in world.keepers.values():
        keeper.kill()
    for keeper in world.keepers.values():
        keeper.start()
        keeper.wait_ready()
    world.cluster.postgres.start()
    world.cluster.proposer.start()
    ledger.wait_for_progress(ROWS, TIMEOUT)
    world.change("add", world.address(4), world.address(5))
    world.change("remove", 1, 2)
    world.wait_members(3, 4, 5, known=(1,))
    world.reckon(ledger, 3, 4, 5)


# ---- the wrong identity


def test_another_safekeeper_at_a_members_address_does_not_count(
    world: MembersWorld, ledger_of: LedgerOf
) -> None:
    """It reports the member's id, but serves another cluster's log. With only it and one member,
    nothing commits."""
    ledger = ledger_of(world.cluster)
    _, _, port = world.address(3).rpartition(":")
    world.keepers[3].kill()
    with SafekeeperProcess(3, world.cluster.root / "another-3", port=int(port)) as another:
        join_elsewhere(another)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        wait_until(lambda: state_of(world, 3) == "lost its data", TIMEOUT, "it to be told apart")
        world.keepers[2].kill()
        wait_until(lambda: listed(world)["condition"] == "BLOCKED", TIMEOUT, "commits to wait")
        acknowledged = ledger.acknowledged
        wait_until(lambda: ledger.last_ack_age > 1.0, TIMEOUT, "a while without an answer")
        assert (ledger.acknowledged, ledger.in_flight > 0) == (acknowledged, True)
        world.keepers[2].start()
        world.keepers[2].wait_ready()
        ledger.wait_for_progress(ROWS, TIMEOUT)
    world.keepers[3].start()
    world.keepers[3].wait_ready()
    world.reckon(ledger, 1, 2, 3)


def listed(world: MembersWorld) -> dict[str, Any]:
    """As sk status lists it."""
    timelines = sk_json("status", *world.options(1))["timelines"]
    (timeline,) = [each for each in timelines if each["timeline_id"] != ELSEWHERE.timeline_id.hex()]
    return dict(timeline)


def state_of(world: MembersWorld, id: int) -> str:
    return str(next(m["state"] for m in listed(world)["members"] if m["safekeeper_id"] == id))


def test_a_safekeeper_of_another_cluster_serves_both_and_loses_only_what_it_leaves(
    world: MembersWorld, ledger_of: LedgerOf
) -> None:
    ledger = ledger_of(world.cluster)
    ours = world.cluster.safekeepers[0].status()["timelines"][0]["timeline_id"]
    world.timeline = ("--timeline", ours)
    shared = world.new_keeper(9)
    join_elsewhere(shared)
    before = elsewhere(shared)
    world.change("replace", 3, shared.address)
    world.wait_members(1, 2, 9)
    ledger.wait_for_progress(ROWS, TIMEOUT)
    world.change("replace", 9, world.address(3))
    world.wait_members(1, 2, 3)
    wait_until(lambda: len(logs(shared)) == 1, TIMEOUT, "it to have left")
    assert elsewhere(shared) == before
    world.reckon(ledger, 1, 2, 3)


def join_elsewhere(keeper: SafekeeperProcess) -> None:
    membership = Membership(OFFER.membership.stamp, (11, 12))
    offer = replace(OFFER, server=replace(OFFER.server, system_id=1), membership=membership)
    ask(keeper.address, "JOIN_TIMELINE", **named(ELSEWHERE), offer=encode_offer(offer).hex())


def logs(keeper: SafekeeperProcess) -> list[dict[str, object]]:
    """The logs that it has not left."""
    return [timeline for timeline in keeper.status()["timelines"] if not timeline["has_left"]]


def elsewhere(keeper: SafekeeperProcess) -> list[object]:
    """Its state in the other cluster."""
    name = ELSEWHERE.timeline_id.hex()
    (timeline,) = [each for each in logs(keeper) if each["timeline_id"] == name]
    return [timeline[key] for key in ("state", "promised", "membership", "flush_lsn")]


# ---- twice


def test_one_newcomer_named_twice_is_one_member(world: MembersWorld) -> None:
    """Also by two names of its machine."""
    world.new_keeper(4)
    here = world.address(4)
    world.change("add", here, here, here.replace("127.0.0.1", "localhost"))
    world.wait_members(1, 2, 3, 4)
    generation = world.listed()["membership"]["generation"]
    world.change("add", here)
    assert world.listed()["membership"]["generation"] == generation


def test_members_cannot_be_removed_one_by_one_to_the_last(
    world: MembersWorld, ledger_of: LedgerOf
) -> None:
    ledger = ledger_of(world.cluster)
    world.change("remove", 1)
    world.change("remove", 2, known=(3,))
    world.wait_members(3, known=(1,))
    assert_refused(world.member("remove", 3, known=(3,)), 1, "the last one", "sk member replace")
    world.change("replace", 3, world.address(1), known=(3,))
    world.wait_members(1, known=(2,))
    world.reckon(ledger, 1)


# ---- two operators


@pytest.mark.parametrize("has_proposer", [True, False], ids=["a proposer", "no proposer"])
def test_two_operators_at_once_both_succeed_in_the_end(
    world: MembersWorld, ledger_of: LedgerOf, has_proposer: bool
) -> None:
    """Each change is made completely or not at all; the operator who was refused tries again."""
    ledger = ledger_of(world.cluster)
    if not has_proposer:
        world.cluster.proposer.kill()
    world.new_keeper(4)
    world.new_keeper(5)
    commands = [world.begin("add", world.address(id)) for id in (4, 5)]
    for each in commands:
        assert each.wait(TIMEOUT) in (0, 1, 4), each.log_text()
        assert "Traceback" not in each.log_text()
    assert world.members() in ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 4, 5])
    for id in (4, 5):
        world.change("add", world.address(id))
    world.wait_members(1, 2, 3, 4, 5)
    if not has_proposer:
        world.cluster.proposer.start()
    world.reckon(ledger, 1, 2, 3, 4, 5)


def test_the_same_command_twice_at_once_is_one_change(
    world: MembersWorld, ledger_of: LedgerOf
) -> None:
    ledger = ledger_of(world.cluster)
    world.new_keeper(4)
    commands: list[ServiceProcess] = [world.begin("replace", 3, world.address(4)) for _ in range(2)]
    for each in commands:
        assert each.wait(TIMEOUT) == 0, each.log_text()
    world.wait_members(1, 2, 4)
    assert world.listed()["membership"]["generation"] == 3
    world.reckon(ledger, 1, 2, 4)


# ---- the primary is down


def test_a_proposer_that_waits_for_its_primary_is_not_outvoted(
    world: MembersWorld, ledger_of: LedgerOf
) -> None:
    """Its commits would wait until an operator starts it again. The change waits with it. Other
    proposers that connect and are fenced do not hide it."""
    ledger = ledger_of(world.cluster)
    world.new_keeper(4)
    for id in (1, 2, 3):
        status = world.keepers[id].timeline()
        assert status is not None
        with HandWrittenProposer(world.address(id), timeline_id(status)) as another:
            another.ask(lawful_greeting(status))
    world.cluster.postgres.crash()
    command = world.begin("replace", 3, world.address(4))
    wait_until(
        lambda: "it is waiting for its primary" in command.log_text(), TIMEOUT, "it to be asked"
    )
    world.cluster.postgres.start()
    assert command.wait(TIMEOUT) == 0, command.log_text()
    assert world.cluster.proposer.alive, world.cluster.proposer.log_tail()
    world.wait_members(1, 2, 4)
    world.reckon(ledger, 1, 2, 4)
