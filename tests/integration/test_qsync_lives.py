"""Coordinators and primaries that end while transactions wait: their successors finish the
transactions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Thread
from typing import Any

import psycopg
import pytest
from qsync_world import LOCAL, SETTINGS, TIMEOUT, Prepared, QsyncWorld, qsync_arguments
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import StopMode
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync.gid import Policy

SEGMENT_BYTES = 1 << 20

NewWorld = Callable[..., QsyncWorld]


@pytest.fixture
def new_world(quorum_cluster: Callable[..., QuorumCluster]) -> NewWorld:
    """`new_world("--qsync-order", "fifo")`: a cluster with an empty table `accounts`."""

    def make(*arguments: str, **options: Any) -> QsyncWorld:
        port = free_port()
        cluster = quorum_cluster(
            wal_seg_size=SEGMENT_BYTES,
            settings={**SETTINGS, **options.pop("settings", {})},
            proposer_arguments=qsync_arguments(port, *arguments),
            **options,
        )
        cluster.postgres.execute("CREATE TABLE accounts (name text, amount int)")
        world = QsyncWorld(cluster, port)
        world.wait_deciding()
        return world

    return make


class Client:
    """Waits for a verdict in a thread."""

    def __init__(self, world: QsyncWorld, prepared: Prepared, seconds: float = 60.0) -> None:
        self.verdict: str | None = None
        self.sqlstate: str | None = None
        self._thread = Thread(target=self._run, args=(world, prepared, seconds), daemon=True)
        self._thread.start()

    def _run(self, world: QsyncWorld, prepared: Prepared, seconds: float) -> None:
        try:
            self.verdict = world.wait(prepared, seconds)
        except psycopg.Error as error:
            self.sqlstate = error.sqlstate or "lost"

    @property
    def is_answered(self) -> bool:
        return not self._thread.is_alive()

    def wait_answered(self) -> None:
        self._thread.join(TIMEOUT)
        assert self.is_answered


def waiting(world: QsyncWorld, count: int) -> None:
    wait_until(lambda: world.status()["waiting"] == count, TIMEOUT, f"{count} to wait")


def test_a_coordinator_that_was_killed_is_followed_by_one_that_adopts_the_limbo(
    new_world: NewWorld,
) -> None:
    world = new_world()
    world.lose_quorum()
    early = world.prepare(seconds=0.1)
    client = Client(world, early)
    waiting(world, 1)
    world.cluster.proposer.kill()
    client.wait_answered()
    assert client.sqlstate == "lost"
    assert world.limbo() == {early.gid}
    world.find_quorum()
    world.cluster.proposer.start()
    world.wait_finished(early)
    assert world.count() == 1
    wait_until(lambda: world.status()["adopted"] == 1, TIMEOUT, "it to be adopted")
    wait_until(lambda: world.outcome(early) == "committed", TIMEOUT, "its outcome")


def test_a_coordinator_that_stops_in_order_answers_unknown(new_world: NewWorld) -> None:
    world = new_world()
    world.lose_quorum()
    client = Client(world, world.prepare())
    waiting(world, 1)
    world.cluster.proposer.terminate()
    client.wait_answered()
    assert client.sqlstate == "57P01"


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_primary_that_restarts_has_its_limbo_and_gets_its_verdicts(
    new_world: NewWorld, mode: StopMode
) -> None:
    """Each waiting client gets the answer that the outcome is unknown, and may ask again in the new
    term."""
    world = new_world("--qsync-orphan-grace", "60")
    prepared = world.prepare(seconds=60)
    world.lose_quorum()
    lost = world.prepare(seconds=60)
    client = Client(world, lost)
    waiting(world, 1)
    if mode == "immediate":
        world.postgres.crash()
    else:
        Thread(target=world.postgres.stop, daemon=True).start()
        wait_until(lambda: not world.postgres.is_running, TIMEOUT, "the primary to end")
    client.wait_answered()
    assert client.sqlstate == "57P01"
    with pytest.raises(psycopg.Error) as refused:
        world.ask("ADMIT")
    assert refused.value.sqlstate == "57P03"
    world.find_quorum()
    world.postgres.start()
    world.wait_deciding()
    assert world.limbo() == {prepared.gid, lost.gid}
    for each in (prepared, lost):
        assert world.wait(each) == "confirmed"
        world.commit(each)
    assert world.count() == 2


def test_a_deposed_coordinator_gives_no_verdict(new_world: NewWorld) -> None:
    """It reaches no safekeeper when another process takes the term."""
    world = new_world("--qsync-orphan-grace", "60", proxied=True)
    cluster = world.cluster
    for proxy in cluster.proxies:
        proxy.cut()
    prepared = world.prepare(seconds=60)
    client = Client(world, prepared)
    waiting(world, 1)
    with proposer_of(world, cluster.postgres.dsn()) as next_world:
        client.wait_answered()
        assert client.sqlstate == "57P01"
        assert next_world.wait(prepared) == "confirmed"
        with pytest.raises(psycopg.Error) as refused:
            world.wait(prepared)
        assert refused.value.sqlstate == "57P03"
        next_world.commit(prepared)
        assert next_world.count() == 1
        assert next_world.outcome(prepared) in ("committed", "pending")


@contextmanager
def proposer_of(world: QsyncWorld, dsn: str) -> Iterator[QsyncWorld]:
    """Another proposer, which connects to the safekeepers directly, and decides."""
    port = free_port()
    addresses = [safekeeper.address for safekeeper in world.cluster.safekeepers]
    log_path = world.cluster.root / f"proposer-{port}.log"
    arguments = qsync_arguments(port)
    another = ProposerProcess(dsn, addresses, log_path=log_path, arguments=arguments)
    with another, world.cluster.led_by(another):
        another.wait_streaming(TIMEOUT)
        next_world = QsyncWorld(world.cluster, port)
        next_world.wait_deciding()
        yield next_world


@pytest.mark.parametrize("hangs", [False, True], ids=["lets go", "hangs"])
def test_a_successor_on_the_same_port_takes_over(new_world: NewWorld, hangs: bool) -> None:
    """Its commits do not wait until the predecessor releases the port; its coordinator does."""
    world = new_world("--qsync-orphan-grace", "60")
    cluster, first = world.cluster, world.cluster.proposer
    prepared = world.prepare(seconds=60)
    if hangs:
        first.pause()
    with (
        cluster.new_proposer(arguments=["--take-over"]) as second,
        cluster.led_by(second),
    ):
        second.wait_streaming(TIMEOUT)
        if hangs:
            assert "in use" in world.status()["refuses"]
            assert (
                "\nsk_proposer_qsync_deciding 0.0\n" in http_get(second.http_address, "/metrics")[1]
            )
            keepers = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
            expected = f"; qsync at 127.0.0.1:{world.port}: could not listen"

            def is_shown() -> bool:
                words = sk("status", "--safekeepers", keepers).stdout
                return "DEGRADED" in words and expected in words

            wait_until(is_shown, TIMEOUT, "sk status to name the port")
            first.resume()
        first.wait(TIMEOUT)
        world.wait_deciding()
        assert world.wait(prepared) == "confirmed"
        world.commit(prepared)
        assert second.status()["qsync"]["address"].endswith(f":{world.port}")


def test_fifo_confirms_and_commits_in_the_order_of_prepare(new_world: NewWorld) -> None:
    """The second is confirmed only when the first has left the limbo, although a quorum has
    both."""
    world = new_world("--qsync-order", "fifo")
    first = world.prepare("INSERT INTO accounts VALUES ('first', 1)", seconds=60)
    second = world.prepare("INSERT INTO accounts VALUES ('second', 1)", seconds=60)
    wait_until(lambda: world.status()["len"] == 2, TIMEOUT, "both to be known")
    client = Client(world, second)
    waiting(world, 1)
    assert world.wait(first) == "confirmed"
    assert not client.is_answered
    world.commit(first)
    client.wait_answered()
    assert client.verdict == "confirmed"
    world.commit(second)


def test_a_janitor_without_rights_finishes_its_own_transactions_and_reports_the_rest(
    new_world: NewWorld,
) -> None:
    """A role that is a member of the owner becomes the owner for this."""
    world = new_world()
    statements: Sequence[str] = (
        "CREATE ROLE proposer LOGIN REPLICATION",
        "CREATE ROLE app LOGIN",
        "CREATE ROLE stranger LOGIN",
        "GRANT app, pg_read_all_settings, pg_monitor TO proposer",
        "GRANT INSERT, SELECT ON accounts TO app, stranger",
    )
    for statement in statements:
        world.postgres.execute(statement, options=LOCAL)
    cluster = world.cluster
    cluster.proposer.terminate()
    with proposer_of(world, cluster.postgres.dsn(user="proposer")) as modest:
        of_app = prepared_by(modest, "app")
        of_stranger = prepared_by(modest, "stranger")
        modest.wait_finished(of_app)
        cluster.proposer.wait_until(
            lambda: "SQLSTATE 42501" in cluster.proposer.log_text(), TIMEOUT, "a report"
        )
        assert modest.limbo() == {of_stranger.gid}
        modest.commit(of_stranger)


def prepared_by(world: QsyncWorld, role: str) -> Prepared:
    return world.prepare(
        f"SET LOCAL SESSION AUTHORIZATION {role}; INSERT INTO accounts VALUES ('{role}', 1)",
        seconds=0.1,
    )


def test_without_room_for_prepared_transactions_attach_refuses(
    quorum_cluster: Callable[..., QuorumCluster],
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEGMENT_BYTES)
    with cluster.new_proposer(arguments=qsync_arguments(free_port())) as second:
        second.wait(TIMEOUT)
        assert "max_prepared_transactions = 0" in second.log_text()
    assert cluster.proposer.alive


def test_without_wal_level_logical_the_limbo_is_read(new_world: NewWorld) -> None:
    """The status has the reason for the missing stream."""
    world = new_world(settings={"wal_level": "replica"})
    left = world.prepare(policy=Policy.ROLLBACK, seconds=0.1)
    world.wait_finished(left)
    assert world.count() == 1
    wait_until(
        lambda: world.status()["streams"] == {"postgres": "no stream: wal_level is replica"},
        TIMEOUT,
        "the state of the stream",
    )


def test_detach_drops_the_unused_slots(new_world: NewWorld) -> None:
    """They would hold WAL without limit."""
    world = new_world()
    world.wait_finished(world.prepare(seconds=0.1))
    wait_until(
        lambda: world.status()["streams"] == {"postgres": "streaming"}, TIMEOUT, "the stream"
    )
    world.cluster.proposer.terminate()
    done = sk("detach", "--primary", world.postgres.dsn(), "--drop-slot", "--force")
    assert done.returncode == 0, done.stderr
    assert 'replication slot "sk_qsync_' in done.stdout
    assert world.postgres.execute("SELECT slot_name FROM pg_replication_slots") == []


def test_a_barrier_in_a_daisy_chain(new_world: NewWorld) -> None:
    """For a member that takes the WAL from another one, only new WAL shows that it follows."""
    world = new_world("--via", "2=1", "--via", "3=1")
    proposer = world.cluster.proposer

    def sources() -> list[int | None]:
        return [member["via"] for member in proposer.status()["membership"]["members"]]

    wait_until(lambda: sources() == [None, 1, 1], TIMEOUT, "the chain")
    lsn = world.postgres.flush_lsn()
    for _ in range(3):
        assert world.ask(f"BARRIER {lsn} TIMEOUT 30000")[0] == "confirmed"
