"""A failover with a limbo: the prepared transactions of the log are committed before clients can
write, also if `sk promote` was killed at any step. Foreign transactions are not touched."""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from threading import Event, Thread

import broken_promotion
import psycopg
import pytest
from failover_world import TIMEOUT, FailoverWorld, Loss
from limbo import prepare, prepared_gids
from pending_commit import PendingCommit
from pg_versions import oldest_and_newest
from sk_command import sk

from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.qsync.gid import Policy
from quorum_wal.walproposer.failover.promotion import Step

SETTINGS = {"max_prepared_transactions": 20}
READ_ONLY = "25006"
FOREIGN = "of another transaction manager"
LOCAL = "-c synchronous_commit=local"
VISIT_SECONDS = 0.01
#: From this step on a kill leaves a standby that is closed, or a primary.
LATE_STEPS = (Step.CLOSE, Step.PROMOTE, Step.ATTACH, Step.RESOLVE, Step.OPEN)


def with_limbo(failover_world: Callable[..., FailoverWorld]) -> tuple[FailoverWorld, list[str]]:
    """Rows 1 and 2 are prepared in two databases, and row 3 has the policy to roll back; its
    deadline has passed. The foreign transaction would insert row 9."""
    world = failover_world(settings=SETTINGS)
    primary = world.cluster.postgres
    primary.execute("CREATE DATABASE other")
    for database in ("postgres", "other"):
        primary.execute("CREATE TABLE t (a int)", dbname=database)
    primary.execute("INSERT INTO t VALUES (0)")
    gids = [
        prepare(primary, "INSERT INTO t VALUES (1)"),
        prepare(primary, "INSERT INTO t VALUES (2)", dbname="other"),
        prepare(primary, "INSERT INTO t VALUES (3)", policy=Policy.ROLLBACK),
    ]
    with primary.connect(options=LOCAL) as session:
        session.execute("BEGIN")
        session.execute("INSERT INTO t VALUES (9)")
        session.execute(f"PREPARE TRANSACTION '{FOREIGN}'")
    primary.execute("SELECT pg_logical_emit_message(true, 'all of it is', 'on a quorum')")
    assert prepared_gids(primary) == {*gids, FOREIGN}
    return world, gids


def rows(postgres: Postgres) -> list[int]:
    return [a for database in ("postgres", "other") for a in rows_in(postgres, database)]


def rows_in(postgres: Postgres, database: str) -> list[int]:
    return [a for (a,) in postgres.execute("SELECT a FROM t ORDER BY a", dbname=database)]


class Visitor:
    """Clients that connect to the writable server, one after the other. `seen`: the result of each
    read in a transaction that may write.

    libpq alone does not know that. A session that starts slowly, from before the server is closed
    until it is promoted, reports neither; its first transaction is read-only.
    """

    def __init__(self, standby: Postgres) -> None:
        self._dsn = standby.dsn(target_session_attrs="read-write", connect_timeout=5)
        self._stopping = Event()
        self.seen: list[list[int]] = []
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(VISIT_SECONDS):
            try:
                with psycopg.connect(self._dsn, options=LOCAL) as connection:
                    read_only = connection.execute("SHOW transaction_read_only").fetchone()
                    found = connection.execute("SELECT a FROM t ORDER BY a").fetchall()
                    if read_only == ("off",):
                        self.seen.append([a for (a,) in found])
            except psycopg.OperationalError:
                pass  # it is a standby, or closed

    def stop(self) -> list[list[int]]:
        """The results."""
        self._stopping.set()
        self._thread.join()
        return self.seen


def assert_resolved(world: FailoverWorld, gids: Sequence[str], visitor: Visitor) -> None:
    """On the new primary, which accepts writes. No session has seen it without the rows."""
    standby = world.standby
    wait_until(lambda: visitor.seen, TIMEOUT, "a client to come in")
    assert is_open(standby)
    assert all(seen == [0, 1, 3] for seen in visitor.stop())
    assert prepared_gids(standby) == {FOREIGN}
    assert rows(standby) == [0, 1, 3, 2]
    standby.execute("INSERT INTO t VALUES (4)")
    standby.execute(f"ROLLBACK PREPARED '{FOREIGN}'")


@pytest.mark.parametrize(
    ("pg_binaries", "loss"),
    [*((binaries, Loss.MACHINE) for binaries in oldest_and_newest()[-1:]), (None, Loss.CUT_OFF)],
    ids=lambda value: getattr(value, "version", getattr(value, "name", "default")),
    indirect=["pg_binaries"],
)
def test_prepared_transactions_are_committed_before_clients_can_write(
    failover_world: Callable[..., FailoverWorld], loss: Loss
) -> None:
    world, gids = with_limbo(failover_world)
    world.lose(loss)
    visitor = Visitor(world.standby)
    with world.standby.connect() as reader, world.promotion() as promotion:
        assert_resolved(world, gids, visitor)
        # A session from before the promotion.
        assert reader.execute("SHOW transaction_read_only").fetchall() == [("off",)]
        words = promotion.log_text()
        assert FOREIGN in words
        assert all(gid in words for gid in gids)
        assert "Traceback" not in words


def test_a_cluster_of_qsync_alone_stays_one(failover_world: Callable[..., FailoverWorld]) -> None:
    """Its plain commits did not wait for the quorum, and do not afterwards."""
    world, gids = with_limbo(failover_world)
    world.standby.execute("ALTER SYSTEM RESET synchronous_standby_names")
    world.standby.execute("SELECT pg_reload_conf()")
    world.lose(Loss.MACHINE)
    visitor = Visitor(world.standby)
    with world.promotion("--no-configure") as promotion:
        assert_resolved(world, gids, visitor)
        assert "step=configure" not in promotion.log_text()
        assert world.standby.execute("SHOW synchronous_standby_names") == [("",)]


def killed_at(world: FailoverWorld, step: str, *arguments: str) -> str:
    """The output of `sk promote` until it was killed there."""
    promotion = ServiceProcess(
        [
            *(sys.executable, "-m", "tests.integration.broken_promotion", step),
            *("--standby", world.standby.dsn(), "--safekeepers", ",".join(world.addresses)),
            *("--http", "127.0.0.1:0", *arguments),
        ],
        name=f"sk promote, killed at {step}",
        log_path=world.cluster.root / f"killed-{secrets.token_hex(4)}.log",
    )
    with promotion:
        assert promotion.wait(TIMEOUT) == -signal.SIGKILL, promotion.log_tail()
        return promotion.log_text()


def test_killed_at_each_step_and_run_again(failover_world: Callable[..., FailoverWorld]) -> None:
    """Until the last step clients cannot write; the next run completes the rest."""
    world, gids = with_limbo(failover_world)
    standby = world.standby
    world.lose(Loss.MACHINE)
    visitor = Visitor(standby)
    for step in (Step.ELECT, Step.CLOSE, Step.PROMOTE, Step.ATTACH, Step.RESOLVE):
        killed_at(world, step.name)
        with pytest.raises(psycopg.Error) as refused:
            standby.execute("INSERT INTO t VALUES (5)")
        assert refused.value.sqlstate == READ_ONLY
    assert prepared_gids(standby) == {*gids, FOREIGN}
    killed_at(world, broken_promotion.HALF)
    assert len(prepared_gids(standby)) == len(gids)
    killed_at(world, Step.OPEN.name)
    assert prepared_gids(standby) == {FOREIGN}
    assert visitor.seen == []
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        assert_resolved(world, gids, visitor)


def test_killed_between_a_setting_and_its_reload(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """The file has the new value, and the server the old one. The next command repairs it, also one
    that reloads the configuration for another reason."""
    world, gids = with_limbo(failover_world)
    standby = world.standby
    world.lose(Loss.MACHINE)
    visitor = Visitor(standby)
    killed_at(world, broken_promotion.HALF_CLOSED)
    assert (is_open(standby), entries(standby)) == (True, ["yes"])
    killed_at(world, Step.PROMOTE.name)
    assert not is_open(standby)
    killed_at(world, broken_promotion.HALF_OPEN)
    assert (is_open(standby), entries(standby)) == (False, [])
    assert visitor.seen == []
    with attached(world) as proposer:
        proposer.wait_streaming(TIMEOUT)
        assert_resolved(world, gids, visitor)


def entries(postgres: Postgres) -> list[str]:
    """The entries of the setting in postgresql.auto.conf."""
    found = postgres.execute(
        "SELECT setting FROM pg_file_settings WHERE name = 'default_transaction_read_only'"
    )
    return [setting for (setting,) in found]


def attached(world: FailoverWorld) -> ProposerProcess:
    """`sk attach`, which libpq would refuse because of the read-only state; not started."""
    return ProposerProcess(
        world.standby.dsn(target_session_attrs="read-write"),
        world.addresses,
        log_path=world.cluster.root / "attach.log",
    )


def test_a_dry_run_names_the_steps(failover_world: Callable[..., FailoverWorld]) -> None:
    world, _ = with_limbo(failover_world)
    world.lose(Loss.KILLED)
    arguments = ("--standby", world.standby.dsn(), "--safekeepers", ",".join(world.addresses))
    done = sk("promote", *arguments, "--dry-run")
    assert done.returncode == 0, done.stderr
    steps = [line.partition(". ")[2] for line in done.stdout.splitlines()]
    assert steps[-5:] == [step.value for step in LATE_STEPS]
    killed_at(world, Step.RESOLVE.name)
    done = sk("promote", *arguments, "--dry-run")
    steps = [line.partition(". ")[2] for line in done.stdout.splitlines()]
    assert steps[-3:] == [step.value for step in LATE_STEPS[-3:]], done


def test_a_database_that_refuses_the_role_is_named(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """The server stays closed until the problem is solved."""
    world, gids = with_limbo(failover_world)
    standby = world.standby
    hba = standby.data_dir / "pg_hba.conf"
    lines = hba.read_text()
    hba.write_text(f"host other all all reject\n{lines}")
    standby.execute("SELECT pg_reload_conf()")
    world.lose(Loss.MACHINE)
    visitor = Visitor(standby)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        error = wait_until(lambda: promotion.status()["failover"]["error"], TIMEOUT, "an error")
        assert f'prepared transaction "{gids[1]}" cannot be committed' in error
        assert "pg_hba.conf" in error
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            standby.execute("INSERT INTO t VALUES (5)")
        assert visitor.seen == []
        hba.write_text(lines)
        standby.execute("SELECT pg_reload_conf()")
        assert_resolved(world, gids, visitor)
        assert promotion.status()["failover"] == {"finished": True, "error": None}


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_an_earlier_session_is_waited_for(
    failover_world: Callable[..., FailoverWorld], end: str
) -> None:
    """A session that ends one of our transactions first holds it until the quorum has its
    record."""
    world, gids = with_limbo(failover_world)
    world.lose(Loss.MACHINE)
    killed_at(world, Step.ATTACH.name)
    first = PendingCommit(world.standby, f"{end} PREPARED '{gids[0]}'")
    first.wait_blocked(TIMEOUT)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        first.wait_returned(TIMEOUT)
        wait_until(lambda: is_open(world.standby), TIMEOUT, "clients to be let in")
        assert prepared_gids(world.standby) == {FOREIGN}
        assert (1 in rows(world.standby)) == (end == "COMMIT")
        assert rows(world.standby)[-2:] == [3, 2]


def is_open(postgres: Postgres) -> bool:
    return postgres.execute("SHOW default_transaction_read_only") == [("off",)]


def test_another_tool_promotes_it_and_a_proposer_attaches(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """Any proposer that attaches enables writes, although libpq would refuse its connection because
    of the read-only state."""
    world, gids = with_limbo(failover_world)
    standby = world.standby
    world.lose(Loss.MACHINE)
    visitor = Visitor(standby)
    with world.promotion("--no-promote") as promotion:
        assert promotion.wait(TIMEOUT) == 0, promotion.log_tail()
    assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]
    assert prepared_gids(standby) == {*gids, FOREIGN}
    assert not is_open(standby)
    with attached(world) as proposer:
        proposer.wait_streaming(TIMEOUT)
        assert_resolved(world, gids, visitor)


def test_an_administrator_s_own_setting_stays(failover_world: Callable[..., FailoverWorld]) -> None:
    world, _ = with_limbo(failover_world)
    primary = world.cluster.postgres
    primary.execute("ALTER SYSTEM SET default_transaction_read_only = on")
    primary.execute("SELECT pg_reload_conf()")
    world.cluster.proposer.kill()
    world.cluster.proposer.start()
    world.cluster.proposer.wait_streaming(TIMEOUT)
    finished = {"finished": True, "error": None}
    wait_until(
        lambda: world.cluster.proposer.status()["failover"] == finished, TIMEOUT, "it to look"
    )
    assert not is_open(primary)


def test_transactions_that_the_quorum_lacks_are_not_committed(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """A standby that was ahead of the quorum, promoted by hand: no session may see it before the
    quorum has it."""
    world = failover_world(lambda cluster: cluster.postgres.dsn(), settings=SETTINGS)
    primary, standby = world.cluster.postgres, world.standby
    primary.execute("CREATE TABLE t (a int)")
    for proxy in world.cluster.proxies:
        proxy.cut()
    gid = prepare(primary, "INSERT INTO t VALUES (1)")
    wait_replayed(standby, primary.flush_lsn(), TIMEOUT)
    world.lose(Loss.MACHINE)
    assert standby.execute("SELECT pg_promote(true, 60)") == [(True,)]
    killed_at(world, Step.ATTACH.name)
    assert prepared_gids(standby) == {gid}
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        wait_until(lambda: not prepared_gids(standby), TIMEOUT, "it to be committed")
        assert rows_in(standby, "postgres") == [1]
