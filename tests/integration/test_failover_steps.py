"""`sk promote` step by step: interrupted anywhere, refused where it must be, and past obstacles."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from failover_world import TIMEOUT, FailoverWorld, Loss
from pending_commit import PendingCommit
from sk_command import assert_refused, sk

from quorum_wal.cli.elect import elect_within
from quorum_wal.cli.output import ExitCode
from quorum_wal.cli.promote import FENCES
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import replayed_lsn, replica_conninfo
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.failover.failover import Failover
from quorum_wal.walproposer.failover.promotion import Step
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

NOBODY = "host=127.0.0.1 port=1 connect_timeout=1"
THREE_SEGMENTS = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 3 << 20))"


class Crash(Exception):
    """Ends the process here."""


def failover_until(world: FailoverWorld, step: Step) -> list[Step]:
    """Run a failover that crashes when it begins `step`; returns the steps that it began."""
    begun: list[Step] = []

    def began(each: Step) -> None:
        begun.append(each)
        if each is step:
            raise Crash

    addresses = tuple(map(SafekeeperAddress.parse, world.addresses))
    config = ProposerConfig(PrimaryAddress(world.standby.dsn()), addresses)
    failover = Failover(config, partial(elect_within, TIMEOUT), began=began)
    failover.prepare()
    with pytest.raises(Crash):
        failover.run()
    return begun


def promote_arguments(world: FailoverWorld) -> tuple[str, ...]:
    return ("promote", "--standby", world.standby.dsn(), "--safekeepers", ",".join(world.addresses))


def follow_directly(cluster: QuorumCluster) -> str:
    return cluster.postgres.dsn()


def raw_standby(world: FailoverWorld) -> None:
    """A standby from a base backup that is older than `sk attach`."""
    world.standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
    world.standby.execute("SELECT pg_reload_conf()")
    wait_until(
        lambda: world.standby.execute("SHOW synchronous_standby_names") == [("",)],
        TIMEOUT,
        "the standby to have no synchronous standby",
    )


def test_interrupted_at_each_step_and_run_again(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """Completed steps are not repeated. Commits of the new primary wait before it has a
    proposer."""
    world = failover_world(lambda _: NOBODY, settings={"max_prepared_transactions": 1})
    raw_standby(world)
    with Ledger(world.clients_dsn, clients=3) as ledger:
        ledger.wait_for_progress(100, TIMEOUT)
        world.lose(Loss.MACHINE)
        begun: dict[Step, list[Step]] = {}
        for step in Step:
            if step is Step.SETTLE:
                continue  # it may end before this check
            if step is Step.RESOLVE:
                break  # that of the proposer
            if step is Step.REPLAY:
                pause(world.standby)  # this one may, too
            begun[step] = failover_until(world, step)
            if step is Step.REPLAY:
                resume(world.standby)
        assert begun[Step.CONFIGURE] == [Step.CONFIGURE]
        assert begun[Step.ELECT] == [Step.CONFIGURE, Step.ELECT]
        assert begun[Step.FOLLOW] == [Step.ELECT, Step.FOLLOW]
        assert begun[Step.REPLAY] == [Step.ELECT, Step.FOLLOW, Step.REPLAY]
        for step in (Step.RESERVE, Step.CLOSE, Step.PROMOTE, Step.ATTACH):
            done = {Step.CONFIGURE, Step.FOLLOW}
            done |= {Step.RESERVE} if step is Step.ATTACH else set()
            assert not done & set(begun[step])
            assert begun[step][0] is Step.ELECT
            assert begun[step][-1] is step

        slots = world.standby.execute("SELECT slot_name::text FROM pg_replication_slots ORDER BY 1")
        log = world.cluster.safekeepers[0].status()["timelines"][0]["timeline_id"]
        assert slots == [(f"sk_log_{log}",), ("walproposer",)]
        pending = PendingCommit(world.standby)
        pending.wait_blocked(TIMEOUT)
        with world.promotion() as promotion:
            promotion.wait_streaming(TIMEOUT)
            pending.wait_returned(TIMEOUT)
            ledger.wait_for_progress(50, TIMEOUT)
            ledger.pause()
            ledger.wait_idle(TIMEOUT)
            report = ledger.verify(world.standby.dsn())
            assert report.ok, report
            assert "step=attach" in promotion.log_text()
            assert "step=open" in promotion.log_text()
            assert "step=elect" not in promotion.log_text()


def state_of(world: FailoverWorld) -> list[Any]:
    """Everything that a dry run or a refusal must not change."""
    safekeepers = [safekeeper.timeline() for safekeeper in world.cluster.safekeepers]
    settings = (world.standby.data_dir / "postgresql.auto.conf").read_bytes()
    slots = world.standby.execute("SELECT slot_name FROM pg_replication_slots")
    return [[s and (s["promised"], s["last_log_node_id"]) for s in safekeepers], settings, slots]


def test_a_dry_run_changes_nothing(failover_world: Callable[..., FailoverWorld]) -> None:
    world = failover_world(follow_directly)
    raw_standby(world)
    before = state_of(world)
    done = sk(*promote_arguments(world), "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    steps = [step for step in Step if step not in (Step.CLOSE, Step.RESOLVE, Step.OPEN)]
    assert [line.partition(" ")[2] for line in lines[4:]] == [step.value for step in steps]
    assert "(3 of 3 safekeepers answer)" in lines[1]
    assert f"follows 127.0.0.1:{world.cluster.postgres.port}" in lines[2]
    page = world.cluster.proposer.http_address
    term = world.cluster.proposer.status()["node_id"]["term"]
    assert lines[3].startswith(f"the proposer of term {term} at 127.0.0.1:")
    assert lines[3].endswith(f", status page {page} streams to 3 safekeepers; {FENCES}")
    assert state_of(world) == before
    PendingCommit(world.cluster.postgres).wait_returned(TIMEOUT)
    done = sk(*promote_arguments(world), "--no-promote", "--http", "127.0.0.1:0")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(f"warning: the proposer of term {term} at 127.0.0.1:")
    assert world.cluster.proposer.wait(TIMEOUT) == ExitCode.FENCED
    done = sk(*promote_arguments(world), "--dry-run")
    assert done.stdout.splitlines()[3] == "no proposer streams now"


def test_a_standby_ahead_of_the_quorum_is_refused(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """With the option that the hint names it is promoted, and keeps its WAL."""
    world = failover_world(follow_directly)
    old, standby = world.cluster.postgres, world.standby
    old.execute("CREATE TABLE ahead (a int)")
    with Ledger(world.clients_dsn, clients=3) as ledger:
        ledger.wait_for_progress(20, TIMEOUT)
        for proxy in world.cluster.proxies:
            proxy.cut()
        PendingCommit(old, THREE_SEGMENTS).wait_blocked(TIMEOUT)
        PendingCommit(old, "INSERT INTO ahead VALUES (7)").wait_blocked(TIMEOUT)
        end_lsn = old.flush_lsn()
        wait_until(lambda: replayed_lsn(standby) >= end_lsn, TIMEOUT, "the standby to be ahead")
        world.lose(Loss.MACHINE)
        before = state_of(world)
        done = sk(*promote_arguments(world))
        assert_refused(
            done, 1, f"the standby has WAL up to {replayed_lsn(standby)}", "--keep-ahead"
        )
        assert "but the quorum's log ends at " in done.stderr
        assert state_of(world) == before

        with world.promotion("--keep-ahead") as promotion:
            promotion.wait_streaming(TIMEOUT)
            ledger.wait_for_progress(50, TIMEOUT)
            ledger.pause()
            ledger.wait_idle(TIMEOUT)
            report = ledger.verify(standby.dsn())
            assert report.ok, report
            assert standby.execute("SELECT a FROM ahead") == [(7,)]
            # The old timeline's stream ends before the quorum has all of it: once is enough.
            assert promotion.log_text().count("primary lost") <= 2


def test_a_standby_of_a_lost_safekeeper_gets_the_addresses_of_the_others(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    world = failover_world(lambda cluster: replica_conninfo([cluster.safekeepers[2].address]))
    cluster = world.cluster
    cluster.postgres.execute("CREATE TABLE t (a int)")
    cluster.safekeepers[2].kill()
    cluster.postgres.execute("INSERT INTO t VALUES (7)")
    end_lsn = cluster.postgres.flush_lsn()
    world.lose(Loss.KILLED)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        assert world.standby.execute("SELECT a FROM t") == [(7,)]
        assert replayed_lsn(world.standby) >= Lsn(end_lsn)
        assert "step=follow" in promotion.log_text()


def test_a_paused_standby_is_named(failover_world: Callable[..., FailoverWorld]) -> None:
    world = failover_world()
    pause(world.standby)
    world.cluster.postgres.execute("CREATE TABLE t (a int)")
    world.lose(Loss.KILLED)
    done = sk(*promote_arguments(world), "--timeout", "3", "--http", "127.0.0.1:0")
    assert_refused(done, 4, "the standby has replayed", "pg_wal_replay_resume")
    resume(world.standby)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        assert world.standby.execute("SELECT count(*) FROM t") == [(0,)]


def pause(standby: Postgres) -> None:
    standby.execute("SELECT pg_wal_replay_pause()")
    wait_until(
        lambda: standby.execute("SELECT pg_is_wal_replay_paused()") == [(True,)],
        TIMEOUT,
        "the replay to pause",
    )


def resume(standby: Postgres) -> None:
    standby.execute("SELECT pg_wal_replay_resume()")
