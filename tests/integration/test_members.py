"""Members change while clients commit; whatever dies meanwhile, nothing acknowledged is lost.

Real Postgres, real processes, `sk member` as an operator runs it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from failover_world import FailoverWorld, Loss
from hand_written_proposer import (
    HandWrittenProposer,
    lawful_greeting,
    membership_of,
    timeline_id,
)
from members_world import (
    TIMEOUT,
    WAIT_SECONDS_MAX,
    MembersWorld,
    change_state,
    longest_wait,
)
from pg_versions import oldest_and_newest
from replication_client import ReplicationClient, ServerError
from sk_command import sk, sk_json

from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Stamp
from quorum_wal.consensus.messages import Elected, VoteRequest, VoteResponse
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.standby import make_standby, replica_conninfo, wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SEGMENT_BYTES = 1 << 20
ROWS = 50
REPLACED = re.compile(r"sk member (replace) (\d+) NEWADDR")

LedgerOf = Callable[[QuorumCluster], Ledger]
WorldOf = Callable[..., MembersWorld]


@pytest.fixture
def members_world(quorum_cluster: Callable[..., QuorumCluster]) -> Iterator[WorldOf]:
    with ExitStack() as stack:

        def make(safekeepers: int = 3) -> MembersWorld:
            cluster = quorum_cluster(safekeepers=safekeepers, wal_seg_size=SEGMENT_BYTES)
            return MembersWorld(cluster, stack)

        yield make


def test_from_one_member_to_three_to_five_to_three(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    world = members_world(safekeepers=1)
    for id in (2, 3, 4, 5):
        world.new_keeper(id)
    ledger = ledger_of(world.cluster)
    with longest_wait(ledger) as longest:
        out = world.change("add", world.address(2), world.address(3))
        assert "members 1 -> 1, 2, 3" in out
        world.wait_members(1, 2, 3)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        world.change("add", world.address(4), world.address(5))
        world.wait_members(1, 2, 3, 4, 5)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        world.change("remove", 1, 2)
        world.wait_members(3, 4, 5, known=(3,))
        ledger.wait_for_progress(ROWS, TIMEOUT)
    assert longest[0] < WAIT_SECONDS_MAX
    world.wait_left(1, 2)
    assert world.members(1) == [3, 4, 5]  # it has left, and names the members
    world.reckon(ledger, 3, 4, 5)


def test_all_members_are_replaced_one_after_another(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    """One old address leads to all of them; the proposer starts with old ones only. If all have
    labels, the status shows which sites may be lost."""
    world = members_world()
    ledger = ledger_of(world.cluster)
    with longest_wait(ledger) as longest:
        for old, new in ((1, 4), (2, 5), (3, 6)):
            world.new_keeper(new, "--site", f"room-{new}")
            world.change("replace", old, world.address(new), known=(1,))
            world.wait_left(old)
            ledger.wait_for_progress(ROWS, TIMEOUT)
    assert longest[0] < WAIT_SECONDS_MAX
    world.wait_members(4, 5, 6, known=(1,))
    world.cluster.proposer.kill()
    world.cluster.proposer.start()
    world.reckon(ledger, 4, 5, 6)
    status = sk("status", "--safekeepers", world.address(2))
    assert status.returncode == 0, status.stdout
    assert "OK: commits proceed, 3 of 3 safekeepers" in status.stdout
    assert "sites: the loss of any one site is survived" in status.stdout


def test_a_wiped_member_is_replaced_by_the_command_that_the_status_names(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    """At the same address, while clients commit."""
    world = members_world()
    ledger = ledger_of(world.cluster)
    lost = world.keepers[2]
    with longest_wait(ledger) as longest:
        world.wipe(2)
        _, _, port = lost.address.rpartition(":")
        lost.start()  # as a supervisor does; its disk is empty
        lost.wait_ready()
        verdict = wait_until(lambda: replacement(world), TIMEOUT, "sk status to name the command")
        lost.kill()
        world.new_keeper(7, port=int(port))
        world.change(*verdict, world.address(7))
        ledger.wait_for_progress(ROWS, TIMEOUT)
    assert longest[0] < WAIT_SECONDS_MAX
    world.wait_members(1, 3, 7)
    world.reckon(ledger, 1, 3, 7)
    assert sk_json("status", *world.options())["timelines"][0]["condition"] == "OK"


def replacement(world: MembersWorld) -> tuple[str, str] | None:
    """The `replace` and the id in the verdict."""
    found = REPLACED.search(sk("status", *world.options()).stdout)
    return (found[1], found[2]) if found else None


# ---- deaths in the middle of a change


def kill_nobody(world: MembersWorld, command: ServiceProcess) -> None:
    """Only the command ends."""


def kill_proposer(world: MembersWorld, command: ServiceProcess) -> None:
    world.cluster.proposer.kill()
    world.cluster.proposer.start()


def kill_newcomer(world: MembersWorld, command: ServiceProcess) -> None:
    world.keepers[4].restart()


def kill_member(world: MembersWorld, command: ServiceProcess) -> None:
    world.keepers[2].restart()


def kill_primary(world: MembersWorld, command: ServiceProcess) -> None:
    world.cluster.postgres.crash()
    world.cluster.postgres.start()


@pytest.mark.parametrize(
    ("state", "strike"),
    [
        ("joining", kill_nobody),
        ("joining", kill_proposer),
        ("catching up", kill_newcomer),
        ("catching up", kill_primary),
        ("entered", kill_proposer),
        ("entered", kill_member),
        ("leaving", kill_newcomer),
        ("telling", kill_proposer),
    ],
)
def test_the_same_command_again_after_a_death(
    members_world: WorldOf,
    ledger_of: LedgerOf,
    strike: Callable[[MembersWorld, ServiceProcess], None],
    state: str,
) -> None:
    """When a change has reached a state, a process and the command are killed. Both moments are
    random."""
    world = members_world()
    world.new_keeper(4)
    ledger = ledger_of(world.cluster)
    arguments = ("replace", 3, world.address(4))
    command = world.begin(*arguments)
    states = ["joining", "catching up", "entered", "leaving", "telling", "done"]
    late = states[states.index(state) :]
    wait_until(lambda: world.change_state() in late, TIMEOUT, f"the change to be {state}")
    command.kill()
    strike(world, command)
    ledger.wait_for_progress(ROWS, TIMEOUT)
    assert "done: members 1, 2, 4" in world.change(*arguments) or world.members() == [1, 2, 4]
    world.wait_members(1, 2, 4)
    world.wait_left(3)
    assert "nothing to change: it has members 1, 2, 4" in world.change(*arguments)
    world.reckon(ledger, 1, 2, 4)


def test_an_absent_member_learns_later_that_it_has_left(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    world = members_world()
    ledger = ledger_of(world.cluster)
    world.keepers[3].kill()
    world.new_keeper(4)
    world.change("replace", 3, world.address(4))
    world.wait_members(1, 2, 4)
    world.keepers[3].start()
    world.keepers[3].wait_ready()
    if world.state_on(3) != "left":  # a leader that connected to it may have been earlier
        world.change("replace", 3, world.address(4))
    world.wait_left(3)
    world.reckon(ledger, 1, 2, 4)


def test_a_member_that_returns_at_another_address_is_named_to_the_leader(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    """The leader does not know its new address, and only the leader orders a member to leave."""
    world = members_world()
    ledger = ledger_of(world.cluster)
    world.keepers[3].kill()
    world.new_keeper(4)
    world.change("replace", 3, world.address(4))
    world.wait_members(1, 2, 4)
    elsewhere = world.new_keeper(8)  # for its address
    elsewhere.kill()
    _, _, port = elsewhere.address.rpartition(":")
    with type(elsewhere)(3, world.keepers[3].data_dir, port=int(port)) as again:
        world.keepers[3] = again
        again.wait_ready()
        out = world.change("remove", 3, known=(1, 3))
        assert f"safekeeper 3 ({again.address}) was informed that it has left" in out
        assert world.state_on(3) == "left"
        assert "safekeeper did not leave" not in world.cluster.proposer.log_text()
        world.reckon(ledger, 1, 2, 4)


def test_a_change_on_one_disk_is_completed_by_the_same_command(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    """A leader wrote the members to 1 and died. Before that change is complete, no disk may be
    destroyed."""
    world = members_world()
    ledger = ledger_of(world.cluster)
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    world.cluster.proposer.kill()
    status = world.keepers[1].timeline()
    assert status is not None
    author = NodeId(status["promised"]["term"] + 1, b"written by hand!")
    membership = membership_of(status).stamped(Stamp(author, 1))
    with HandWrittenProposer(world.address(1), timeline_id(status)) as leader:
        leader.ask(lawful_greeting(status))
        vote = leader.ask(VoteRequest(membership.stamp, author))
        assert isinstance(vote, VoteResponse)
        terms = vote.term_history.extended(author, vote.flush_lsn)
        start_lsn = vote.timeline_start_lsn
        elected = Elected(
            author, vote.flush_lsn, start_lsn, membership, terms, vote.tli_history
        )  # fmt: skip
        leader.ask(elected)
    assert not world.listed()["is_complete"]
    shown = sk("member", "list", *world.options()).stdout
    assert "the membership 1, 2, 3 is on disk only on safekeeper 1" in " ".join(shown.split())
    out = world.change("remove", 9)
    assert "not yet on the disks of a quorum" in out
    assert "done: members 1, 2, 3" in out
    assert world.listed()["is_complete"]
    assert "nothing to change: it has members 1, 2, 3" in world.change("remove", 9)


def test_a_member_gets_a_new_label(members_world: WorldOf) -> None:
    world = members_world()
    keeper = world.keepers[2]
    keeper.terminate()
    _, _, port = keeper.address.rpartition(":")
    again = type(keeper)(2, keeper.data_dir, port=int(port), arguments=("--site", "b"))
    with again:
        world.keepers[2] = again
        again.wait_ready()
        for said in ("done: members 1, 2, 3", "nothing to change"):
            assert said in world.change("move", 2, again.address)
        roster = world.listed()["membership"]["roster"]
        assert {m["id"]: m["site"] for m in roster} == {1: "", 2: "b", 3: ""}


def test_without_a_proposer_the_command_acts_as_one(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    world = members_world()
    ledger = ledger_of(world.cluster)
    world.cluster.proposer.kill()
    world.new_keeper(4)
    world.new_keeper(5)
    world.change("replace", 1, world.address(4))
    world.wait_members(2, 3, 4)
    world.change("add", world.address(5))
    world.wait_members(2, 3, 4, 5)
    world.cluster.proposer.start()
    world.reckon(ledger, 2, 3, 4, 5)


def test_a_member_moves_to_another_address(members_world: WorldOf, ledger_of: LedgerOf) -> None:
    world = members_world()
    ledger = ledger_of(world.cluster)
    world.keepers[2].kill()
    folder = world.keepers[2].data_dir
    moved = world.new_keeper(8)  # for its address
    moved.kill()
    _, _, port = moved.address.rpartition(":")
    again = type(moved)(2, folder, port=int(port))
    with again:
        world.keepers[2] = again
        assert "members 1, 2, 3" in world.change("move", 2, again.address, known=(1, 3))
        shown = {m["safekeeper_id"]: m["address"] for m in world.listed(1)["members"]}
        assert shown[2] == again.address
        assert "nothing to change" in world.change("move", 2, again.address, known=(1,))
        world.reckon(ledger, 1, 2, 3)


# ---- those that have left


def test_a_safekeeper_that_has_left_serves_no_client_and_names_the_members(
    members_world: WorldOf, ledger_of: LedgerOf
) -> None:
    """Connected clients get the error from each command. New ones are refused with the SQLSTATE
    that makes libpq try the next host."""
    world = members_world()
    ledger = ledger_of(world.cluster)
    world.new_keeper(4)
    left = world.keepers[3]
    conninfo = replica_conninfo([left.address])
    with ReplicationClient(conninfo) as client:
        world.change("replace", 3, world.address(4))
        world.wait_left(3)
        for command in ("START_REPLICATION PHYSICAL 0/1000000", "IDENTIFY_SYSTEM"):
            with pytest.raises(ServerError) as caught:
                client.start(command)
            assert caught.value.sqlstate == "55000"
            for id in (1, 2, 4):
                assert f"{id} at {world.address(id)}" in caught.value.hint
            client.results()
    with pytest.raises(AssertionError, match=r"FATAL: .* has left timeline") as refused:
        ReplicationClient(conninfo)
    assert f"4 at {world.address(4)}" in str(refused.value)
    wait_until(lambda: "sqlstate=57P03" in left.log_text(), TIMEOUT, "the refusal to be logged")
    assert not list(left.data_dir.rglob("wal/0*"))
    left.restart()  # it knows this from its disk
    assert world.state_on(3) == "left"
    world.change("add", left.address, known=(3,))
    world.wait_members(1, 2, 3, 4)
    world.reckon(ledger, 1, 2, 3, 4)


@pytest.mark.parametrize("binaries", oldest_and_newest(), ids=lambda each: each.version)
def test_a_stock_standby_of_a_safekeeper_that_has_left_connects_to_a_member(
    quorum_cluster: Callable[..., QuorumCluster],
    ledger_of: LedgerOf,
    tmp_path: Path,
    binaries: PostgresBinaries,
) -> None:
    """By itself, if its primary_conninfo names one that is still a member."""
    cluster = quorum_cluster(binaries=binaries, safekeepers=3, wal_seg_size=SEGMENT_BYTES)
    with ExitStack() as stack:
        world = MembersWorld(cluster, stack)
        world.new_keeper(4)
        ledger = ledger_of(cluster)
        conninfo = replica_conninfo([world.address(id) for id in (3, 1, 2)])
        standby = make_standby(cluster.postgres, tmp_path / "standby", conninfo)
        stack.callback(standby.crash)
        standby.start()
        wait_until(lambda: (world.keepers[3].timeline() or {})["replicas"], TIMEOUT, "it to read")
        world.change("replace", 3, world.address(4))
        world.wait_left(3)
        ledger.wait_for_progress(ROWS, TIMEOUT)
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        wait_replayed(standby, cluster.postgres.flush_lsn(), TIMEOUT)
        ledger.resume()


# ---- failovers


def test_a_failover_in_the_middle_of_a_change(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """The machine of the primary dies when a change is seen; a standby is promoted, and the same
    command continues."""
    failover = failover_world()
    with ExitStack() as stack:
        world = MembersWorld(failover.cluster, stack)
        world.new_keeper(4)
        ledger = stack.enter_context(Ledger(failover.clients_dsn, clients=4))
        ledger.wait_for_progress(ROWS, TIMEOUT)
        command = world.begin("replace", 3, world.address(4))
        wait_until(lambda: world.change_state() != "", TIMEOUT, "the change to begin")
        failover.lose(Loss.MACHINE)
        with failover.promotion() as promotion:
            promotion.wait_streaming(TIMEOUT)
            ledger.wait_for_progress(ROWS, TIMEOUT)
            command.wait(TIMEOUT)
            world.change("replace", 3, world.address(4))
            assert change_state(promotion) in ("", "done")
            world.wait_members(1, 2, 4)
            world.wait_left(3)
            world.reckon(ledger, 1, 2, 4, postgres=failover.standby)
