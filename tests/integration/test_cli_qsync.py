"""`sk qsync`, and what `sk check` and `sk status` report about prepared transactions."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from limbo import prepare
from qsync_world import SETTINGS, TIMEOUT, QsyncWorld, qsync_arguments
from sk_command import Done, assert_refused, assert_wrong_usage, sk, sk_json

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync.gid import Policy
from quorum_wal.walproposer.config import ProposerConfig, QsyncConfig
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync.coordinator import Coordinator
from quorum_wal.walproposer.qsync.verdict_server import OPEN_ACCESS

PORT = free_port()
NEVER = f"skq1.d.1.1-1-1-1.{'0' * 32}"
AGE_MAX_SECONDS = 2.0


@pytest.fixture(scope="module")
def cluster_options() -> dict[str, Any]:
    arguments = qsync_arguments(PORT, "--qsync-age-max", str(AGE_MAX_SECONDS))
    return {"settings": SETTINGS, "proposer_arguments": arguments}


@pytest.fixture
def world(cluster: QuorumCluster) -> QsyncWorld:
    """Without the transactions and rows of the test before."""
    made = QsyncWorld(cluster, PORT)
    for gid in made.limbo():
        cluster.postgres.execute(f"ROLLBACK PREPARED '{gid}'")
    cluster.postgres.execute("DROP TABLE IF EXISTS accounts")
    cluster.postgres.execute("CREATE TABLE accounts (name text, amount int)")
    wait_until(lambda: made.status()["len"] == 0, TIMEOUT, "the coordinator to know of no other")
    made.wait_deciding()
    return made


def qsync(world: QsyncWorld, command: str, *more: object) -> Done:
    return sk("qsync", command, *more, "--coordinator", address(world))


def address(world: QsyncWorld) -> str:
    return f"127.0.0.1:{world.port}"


def status_json(world: QsyncWorld) -> Any:
    (page,) = sk_json("qsync", "status", "--coordinator", address(world))
    return page


def test_a_transaction_from_its_prepare_to_its_end(world: QsyncWorld) -> None:
    done = qsync(world, "status")
    assert done.returncode == 0, done.stderr
    assert f"coordinator {address(world)}: leads in term" in done.stdout
    assert "limbo 0 of 10" in done.stdout
    assert status_json(world)["len"] == 0

    world.lose_quorum()
    prepared = world.prepare(seconds=600.0, policy=Policy.ROLLBACK)
    world.prepare("INSERT INTO accounts VALUES ('b', 2)", seconds=600.0)
    listed = wait_until(lambda: both_listed(world), TIMEOUT, "them to be listed")
    assert listed[0]["gid"] == prepared.gid
    assert (listed[0]["database"], listed[0]["policy"], listed[0]["confirmed"]) == (
        "postgres", "rollback", False,
    )  # fmt: skip
    table = qsync(world, "list")
    assert table.returncode == 0, table.stderr
    assert prepared.gid in table.stdout

    done = qsync(world, "outcome", prepared.gid)
    assert (done.returncode, done.stdout.split()[0]) == (3, "pending")
    done = qsync(world, "resolve", prepared.gid, "--commit")
    assert_refused(done, 1, "the quorum does not have prepared transaction", "Wait for the quorum")
    done = qsync(world, "resolve", prepared.gid, "--rollback", "--timeout", "0.5")
    assert_refused(done, 3, "not known yet whether a quorum has the ROLLBACK", "sk qsync outcome")
    world.find_quorum()
    done = wait_until(lambda: final(world, prepared.gid), TIMEOUT, "the outcome")
    assert (done.returncode, done.stdout.split()[0]) == (0, "rolled_back")

    (other,) = [row["gid"] for row in listed if row["gid"] != prepared.gid]
    wait_until(lambda: all_confirmed(world), TIMEOUT, "the quorum to have it")
    done = qsync(world, "resolve", other, "--commit")
    assert (done.returncode, done.stdout) == (0, "committed\n"), done.stderr
    outcome = sk_json("qsync", "outcome", other, "--coordinator", address(world))
    assert outcome["outcome"] == "committed"
    assert world.postgres.execute("SELECT name FROM accounts") == [("b",)]
    done = qsync(world, "resolve", other, "--rollback")
    assert_refused(done, 1, "does not exist", "OUTCOME")
    assert json.loads(qsync(world, "list", "--json").stdout) == []


def both_listed(world: QsyncWorld) -> Any:
    rows = sk_json("qsync", "list", "--coordinator", address(world))
    return len(rows) == 2 and rows


def all_confirmed(world: QsyncWorld) -> bool:
    return all(row["confirmed"] for row in json.loads(qsync(world, "list", "--json").stdout))


def final(world: QsyncWorld, gid: str) -> Done | None:
    done = qsync(world, "outcome", gid)
    return done if done.returncode == 0 else None


def test_an_old_transaction_is_reported_everywhere(world: QsyncWorld) -> None:
    """By its age. The quorum is back, so that `sk status` reports only qsync."""
    world.lose_quorum()
    world.prepare(seconds=600.0)
    wait_until(lambda: "prepared for" in (status_json(world)["refuses"] or ""), TIMEOUT, "an alarm")
    assert qsync(world, "status").returncode == 3
    world.find_quorum()
    keepers = ",".join(s.address for s in world.cluster.safekeepers)
    arguments = ("--safekeepers", keepers, "--primary", world.postgres.dsn())

    def says_so() -> str | None:
        done = sk("status", *arguments)
        return done.stdout if "DEGRADED" in done.stdout and done.returncode == 0 else None

    words = wait_until(says_so, TIMEOUT, "sk status to say so")
    assert "qsync admits no transaction" in words
    assert "sk qsync list" in words
    assert f"qsync at {address(world)}: 1 of 10 prepared, the oldest for" in words
    (view,) = sk_json("status", *arguments)["primaries"]
    assert view["limbo_len"] == 1
    assert view["limbo_seconds"] > AGE_MAX_SECONDS
    done = sk("qsync", "check", "--primary", world.postgres.dsn(), "--coordinator", address(world))
    assert done.returncode == 3
    assert "it admits no transaction" in done.stdout


def test_watch_draws_until_it_is_interrupted(world: QsyncWorld, tmp_path: Path) -> None:
    watch = ServiceProcess(
        [*SK, "qsync", "watch", "--coordinator", address(world)],
        name="sk qsync watch",
        log_path=tmp_path / "watch.log",
        env={"FORCE_COLOR": "1", "COLUMNS": "200"},
    )
    with watch:
        watch.wait_until(lambda: "limbo 0 of 10" in watch.log_text(), TIMEOUT, "it to draw")
        watch.send_signal(signal.SIGINT)
        assert watch.wait(TIMEOUT) == 0
        assert "Traceback" not in watch.log_text()


def test_checks(
    quorum_cluster: Callable[..., QuorumCluster], standby_factory: Callable[..., Postgres]
) -> None:
    """On a cluster of its own, whose settings become wrong."""
    port = free_port()
    cluster = quorum_cluster(
        wal_seg_size=1 << 20, settings=SETTINGS, proposer_arguments=qsync_arguments(port)
    )
    QsyncWorld(cluster, port).wait_deciding()
    primary = cluster.postgres
    standby = standby_factory(primary, "standby", cluster.replica_conninfo())
    arguments = ("--primary", primary.dsn(), "--standby", standby.dsn())
    page = sk_json("qsync", "check", *arguments, "--coordinator", f"127.0.0.1:{port}")
    assert page["passed"], page
    named = {finding["check"] for finding in page["findings"]}
    assert named >= {"version", "max_prepared_transactions", "wal_level", "janitor", "coordinator"}

    primary.configure(max_prepared_transactions=30, wal_level="replica")
    primary.restart()
    done = sk("qsync", "check", *arguments)
    assert done.returncode == 3
    assert "20 on the standby" in done.stdout
    assert "30 on the primary" in done.stdout
    assert "wal_level" in done.stdout
    keepers = ",".join(s.address for s in cluster.safekeepers)
    done = sk("check", *arguments, "--safekeepers", keepers)
    assert done.returncode == 3
    assert "20 on the standby" in done.stdout

    primary.execute("CREATE ROLE app LOGIN")
    primary.execute("CREATE ROLE proposer LOGIN REPLICATION")
    done = sk("qsync", "check", "--primary", primary.dsn(user="proposer"))
    assert done.returncode == 0, done.stdout
    assert "may not finish transactions of roles: app, postgres" in done.stdout

    primary.configure(max_prepared_transactions=0)
    primary.restart()
    done = sk("qsync", "check", "--primary", primary.dsn())
    assert done.returncode == 3
    assert "0, expected at least 10" in done.stdout


def test_foreign_and_wrong(world: QsyncWorld) -> None:
    assert_wrong_usage(qsync(world, "outcome", "of others"), "invalid gid")
    assert_wrong_usage(qsync(world, "resolve", NEVER), "give --commit or --rollback")
    assert_wrong_usage(sk("qsync", "status", "--coordinator", "nowhere"), "expected HOST:PORT")
    done = sk("qsync", "list", "--coordinator", "127.0.0.1:1")
    assert_refused(done, 4, "could not connect to the coordinator", "Start it")
    two = f"127.0.0.1:1,{address(world)}"
    assert sk("qsync", "list", "--coordinator", two).returncode == 0
    assert sk("qsync", "status", "--coordinator", two).returncode == 0


@contextmanager
def not_leading() -> Iterator[str]:
    """The address of the coordinator of a process that has no incarnation yet."""
    qsync = QsyncConfig("127.0.0.1", 0, OPEN_ACCESS)
    coordinator = Coordinator(ProposerConfig(PrimaryAddress(""), (), qsync=qsync), limbo_max=10)
    coordinator.start()
    try:
        yield coordinator.address
    finally:
        coordinator.close()


def test_of_several_coordinators_the_one_that_leads_is_asked(world: QsyncWorld) -> None:
    """A coordinator that does not lead does not know the limbo; its limbo is not empty."""
    prepared = world.prepare(seconds=600.0)
    wait_until(lambda: status_json(world)["len"] == 1, TIMEOUT, "it to be known")
    with not_leading() as other:
        done = sk("qsync", "list", "--coordinator", other)
        assert_refused(done, 4, "the coordinator does not lead", "ask another proposer")
        both = f"{other},{address(world)}"
        assert [row["gid"] for row in sk_json("qsync", "list", "--coordinator", both)] == [
            prepared.gid
        ]
        pages = sk_json("qsync", "status", "--coordinator", both)
        assert [page["address"] for page in pages] == [address(world), other]
        words = sk("qsync", "status", "--coordinator", both).stdout
        assert words.startswith(f"coordinator {address(world)}: leads in term")


def test_a_coordinator_that_does_not_lead(world: QsyncWorld) -> None:
    gid = prepare(world.postgres, "INSERT INTO accounts VALUES ('a', 1)", deadline_ms=1 << 44)
    world.cluster.postgres.stop("immediate")
    wait_until(lambda: status_json(world)["owner"] is None, TIMEOUT, "it to lead no more")
    done = qsync(world, "status")
    assert done.returncode == 3
    assert "does not lead" in done.stdout
    done = qsync(world, "outcome", gid)
    assert_refused(done, 4, "the coordinator refused", "ask another proposer")
    assert_refused(qsync(world, "list"), 4, "the coordinator does not lead", "Try again later")
