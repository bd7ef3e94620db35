"""Transactions are committed when a quorum has them, and are never seen before."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from threading import Thread
from typing import Any

import psycopg
import pytest
from qsync_world import GRACE_SECONDS, INSERT, LOCAL, SETTINGS, TIMEOUT, QsyncWorld, qsync_arguments
from shared_cluster import SharedCluster

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Policy


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def cluster_options(port: int) -> dict[str, Any]:
    return {"settings": SETTINGS, "proposer_arguments": qsync_arguments(port)}


@pytest.fixture
def world(
    shared_cluster: SharedCluster[QuorumCluster], cluster: QuorumCluster, port: int
) -> Iterator[QsyncWorld]:
    """An empty table `accounts`, and nothing is prepared."""
    world = QsyncWorld(cluster, port)
    cluster.postgres.execute("CREATE TABLE IF NOT EXISTS accounts (name text, amount int)")
    cluster.postgres.execute("TRUNCATE accounts")
    world.wait_deciding()
    wait_until(lambda: world.status()["len"] == 0, TIMEOUT, "the last test's to be forgotten")
    yield world
    world.find_quorum()
    if world.limbo():
        shared_cluster.discard()


def test_a_transaction_is_seen_after_the_quorum_has_it(world: QsyncWorld) -> None:
    prepared = world.prepare()
    assert world.count() == 0
    assert world.wait(prepared) == "confirmed"
    assert world.count() == 0
    world.commit(prepared)
    assert world.count() == 1
    wait_until(lambda: world.outcome(prepared) == "committed", TIMEOUT, "its outcome")


def test_without_a_quorum_it_is_pending_and_then_confirmed(world: QsyncWorld) -> None:
    world.lose_quorum()
    prepared = world.prepare()
    assert world.wait(prepared, 0.5) == "pending"
    assert world.ask(f"WAIT_LSN {prepared.lsn} TIMEOUT 0")[0] == "pending"
    assert world.outcome(prepared) == "pending"
    assert world.count() == 0
    answers: list[str] = []
    client = Thread(target=lambda: answers.append(world.wait(prepared)))
    client.start()
    wait_until(lambda: world.status()["waiting"] == 1, TIMEOUT, "a client to wait")
    world.find_quorum()
    client.join(TIMEOUT)
    assert answers == ["confirmed"]
    world.commit(prepared)
    assert world.count() == 1


def test_a_lost_quorum_admits_nothing(world: QsyncWorld) -> None:
    term, limbo_len = world.ask("ADMIT")
    assert (term, limbo_len) == (world.cluster.proposer.term, 0)
    for safekeeper in world.cluster.safekeepers[1:]:
        safekeeper.kill()

    def refusal() -> str | None:
        try:
            world.ask("ADMIT")
        except psycopg.Error as error:
            return error.sqlstate
        return None

    wait_until(lambda: refusal() == "57P03", TIMEOUT, "ADMIT to be refused")
    for safekeeper in world.cluster.safekeepers[1:]:
        safekeeper.start()
    wait_until(lambda: refusal() is None, TIMEOUT, "ADMIT to be granted")


def test_the_janitor_commits_what_its_client_left(world: QsyncWorld) -> None:
    """The client's session ended after PREPARE, and no other one named the gid until its
    deadline."""
    prepared = world.prepare(seconds=1.0)
    world.wait_finished(prepared)
    assert world.count() == 1
    wait_until(lambda: world.outcome(prepared) == "committed", TIMEOUT, "its outcome")
    wait_until(lambda: world.status()["committed"] >= 1, TIMEOUT, "it to be counted")


def test_the_janitor_does_not_touch_a_transaction_with_a_connected_client(
    world: QsyncWorld,
) -> None:
    prepared = world.prepare(seconds=60.0)
    with world.connected() as connection:
        ask = f"WAIT_LSN {prepared.lsn} TIMEOUT 10000 GID '{prepared.gid}'"
        row = connection.execute(ask).fetchone()
        assert row is not None
        assert row[0] == "confirmed"
        until = time.monotonic() + 4 * GRACE_SECONDS
        wait_until(lambda: time.monotonic() > until, TIMEOUT, "a janitor that is too eager")
        assert prepared.gid in world.limbo()
    world.wait_finished(prepared)
    assert world.count() == 1


def test_policy_rollback_rolls_back_without_a_quorum(world: QsyncWorld) -> None:
    """It is rolled back on the primary at once; the outcome is reported only when the quorum has
    the record."""
    world.lose_quorum()
    prepared = world.prepare(policy=Policy.ROLLBACK, seconds=0.5)
    world.wait_finished(prepared)
    assert world.outcome(prepared) == "pending"
    world.find_quorum()
    wait_until(lambda: world.outcome(prepared) == "rolled_back", TIMEOUT, "its outcome")
    assert world.count() == 0


def test_policy_detach_goes_on_waiting_beyond_its_deadline(world: QsyncWorld) -> None:
    world.lose_quorum()
    prepared = world.prepare(policy=Policy.DETACH, seconds=0.2)
    patient = world.prepare("INSERT INTO accounts VALUES ('other', 2)", policy=Policy.ROLLBACK)
    until = time.monotonic() + 4 * GRACE_SECONDS
    wait_until(lambda: time.monotonic() > until, TIMEOUT, "a janitor that is too eager")
    assert world.limbo() == {prepared.gid, patient.gid}
    world.find_quorum()
    world.wait_finished(prepared)
    world.wait_finished(patient)
    assert world.count() == 2


def test_foreign_gids_are_not_touched(world: QsyncWorld) -> None:
    foreign = ["skq1.d.1.1-1-1-1.tooshort", "it's", "pg_gid_1_2"]
    with world.postgres.connect(options=LOCAL) as connection:
        for gid in foreign:
            connection.execute("BEGIN")
            connection.execute(INSERT)
            connection.execute(psycopg.sql.SQL("PREPARE TRANSACTION {}").format(gid))
    ours = world.prepare(seconds=0.1)
    world.wait_finished(ours)
    wait_until(lambda: world.status()["foreign"] == len(foreign), TIMEOUT, "them to be counted")
    assert world.limbo() == set(foreign)
    wait_until(lambda: world.status()["len"] == 0, TIMEOUT, "ours to be gone")
    with pytest.raises(psycopg.Error) as refused:
        world.ask(f"RESOLVE '{foreign[-1]}' ROLLBACK")
    assert refused.value.sqlstate == "22023"
    for gid in foreign:
        world.postgres.execute(psycopg.sql.SQL("ROLLBACK PREPARED {}").format(gid), options=LOCAL)


def test_a_barrier_needs_a_quorum_that_answers_now(world: QsyncWorld) -> None:
    """The position was committed long ago, but each barrier must prove that the term is live."""
    lsn = world.postgres.flush_lsn()
    begun = time.monotonic()
    for _ in range(20):
        verdict, commit_lsn, _ = world.ask(f"BARRIER {lsn} TIMEOUT 10000")
        assert verdict == "confirmed"
        assert Lsn.parse(commit_lsn) >= lsn
    assert time.monotonic() - begun < 10
    world.lose_quorum()
    assert world.ask(f"BARRIER {lsn} TIMEOUT 300")[0] == "pending"
    assert world.ask(f"WAIT_LSN {lsn} TIMEOUT 300")[0] == "confirmed"
    world.find_quorum()
    assert world.ask(f"BARRIER {lsn} TIMEOUT 30000")[0] == "confirmed"


def test_the_stream_has_exact_ends(world: QsyncWorld) -> None:
    """The stream begins when no transaction is prepared; until then the limbo is read."""
    world.wait_finished(world.prepare(seconds=0.1))
    wait_until(
        lambda: world.status()["streams"].get("postgres") == "streaming", TIMEOUT, "the stream"
    )
    world.lose_quorum()
    prepared = world.prepare()
    row = wait_until(lambda: listed(world, prepared.gid), TIMEOUT, "it to be listed")
    assert row["is_exact"]
    assert int(Lsn.parse(row["prepare_end_lsn"])) <= prepared.lsn
    assert not row["confirmed"]
    assert (row["database"], row["policy"]) == ("postgres", "detach")
    world.find_quorum()
    world.wait_finished(prepared)


def listed(world: QsyncWorld, gid: str) -> dict[str, Any] | None:
    """Its row in QSYNC_LIST."""
    with world.connected() as connection:
        cursor = connection.cursor(row_factory=psycopg.rows.dict_row)
        rows = cursor.execute("QSYNC_LIST").fetchall()
    return next((row for row in rows if row["gid"] == gid), None)


def test_transactions_of_all_databases_are_finished(world: QsyncWorld) -> None:
    name = 'A database\'s "name"'
    world.postgres.execute(
        psycopg.sql.SQL("CREATE DATABASE {}").format(psycopg.sql.Identifier(name))
    )
    world.postgres.execute("CREATE TABLE accounts (name text, amount int)", dbname=name)
    prepared = world.prepare(seconds=0.1, database=name)
    world.wait_finished(prepared)
    assert world.count(database=name) == 1


def test_an_administrator_resolves(world: QsyncWorld) -> None:
    kept, dropped = world.prepare(seconds=60), world.prepare(seconds=60)
    with world.connected() as client:  # it stays; the janitor would commit one without a client
        row = client.execute(f"WAIT_LSN {kept.lsn} TIMEOUT 30000 GID '{kept.gid}'").fetchone()
        assert row is not None
        assert row[0] == "confirmed"
        for each in (kept, dropped):
            wait_until(lambda gid=each.gid: listed(world, gid), TIMEOUT, "it to be listed")
        assert world.ask(f"RESOLVE '{kept.gid}' COMMIT")[0] == "committed"
    assert world.ask(f"RESOLVE '{dropped.gid}' ROLLBACK")[0] == "rolled_back"
    assert world.limbo() == set()
    assert world.count() == 1


def test_the_status_and_the_metrics_agree(world: QsyncWorld) -> None:
    (before,) = world.ask("QSYNC_STATUS")
    confirmed = before["confirmed"] + 1
    prepared = world.prepare()
    assert world.wait(prepared) == "confirmed"
    world.commit(prepared)
    wait_until(lambda: world.status()["confirmed"] == confirmed, TIMEOUT, "it to be counted")
    _, text = http_get(world.cluster.proposer.http_address, "/metrics")
    values = dict(re.findall(r"^(sk_proposer_qsync_\w+) (\S+)$", text, re.MULTILINE))
    assert float(values["sk_proposer_qsync_deciding"]) == 1
    assert float(values["sk_proposer_qsync_limbo_len_max"]) == 10
    assert float(values["sk_proposer_qsync_term"]) > 0
    assert float(values["sk_proposer_qsync_quorum"]) == 2
    assert re.search(r'^sk_proposer_qsync_owner\{owner="[0-9a-f]{32}"\} 1', text, re.MULTILINE)
    assert float(values["sk_proposer_qsync_confirmed_total"]) == confirmed
    (row,) = world.ask("QSYNC_STATUS")
    assert row["quorum"] == 2
    assert row["term"] == world.cluster.proposer.term
    assert row["address"].endswith(f":{world.port}")
