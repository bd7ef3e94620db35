"""`sk rejoin`: the deposed primary follows the safekeepers, and can be promoted again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from failover_world import SEG_SIZE, TIMEOUT, FailoverWorld, Loss
from pending_commit import PendingCommit
from sk_command import assert_refused, sk
from stock_clients import table_checksums
from workload import write_wal

from quorum_wal.consensus.tli_history import last_switch_lsn
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres, StopMode
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.standby import wait_replayed
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.segment import format_segment_name

ROUNDS = 2
STOP_MODES: tuple[StopMode, ...] = ("fast", "immediate")


def rejoin_arguments(world: FailoverWorld, old: Postgres, new: Postgres) -> tuple[str, ...]:
    return (
        *("rejoin", "--old-primary", str(old.data_dir), "--new-primary", new.dsn()),
        *("--safekeepers", ",".join(world.addresses)),
        *("--replica-conninfo", "user=postgres"),
    )


def promotion_of(world: FailoverWorld, standby: Postgres, number: int) -> ProposerProcess:
    return ProposerProcess(
        standby.dsn(),
        world.addresses,
        log_path=world.cluster.root / f"promotion-{number}.log",
        promotes=True,
    )


def lose_with_a_tail(world: FailoverWorld) -> None:
    """The primary dies with WAL that no other server has."""
    for proxy in world.cluster.proxies:
        proxy.cut()
    old = world.cluster.postgres
    pending = PendingCommit(old, "CREATE TABLE never_acknowledged (a int)")
    pending.wait_blocked(TIMEOUT)
    world.lose(Loss.MACHINE)


def test_two_servers_change_roles_twice(failover_world: Callable[..., FailoverWorld]) -> None:
    """The two servers change roles twice; the WAL that only a lost primary had is undone."""
    world = failover_world()
    primary, standby = world.cluster.postgres, world.standby
    with Ledger(world.clients_dsn, clients=3) as ledger:
        ledger.wait_for_progress(50, TIMEOUT)
        lose_with_a_tail(world)
        for number in range(ROUNDS):
            with promotion_of(world, standby, number) as promotion:
                promotion.wait_streaming(TIMEOUT)
                ledger.redirect(standby.dsn())
                ledger.wait_for_progress(50, TIMEOUT)
                done = sk(*rejoin_arguments(world, primary, standby))
                assert done.returncode == 0, done.stderr
                assert "pg_rewind has undone" in done.stdout
                again = sk(*rejoin_arguments(world, primary, standby))
                assert again.returncode == 0, again.stderr
                assert "already" in again.stdout
                primary.start()
                ledger.wait_for_progress(20, TIMEOUT)
                ledger.pause()
                ledger.wait_idle(TIMEOUT)
                report = ledger.verify(standby.dsn())
                assert report.ok, report
                wait_replayed(primary, standby.flush_lsn(), TIMEOUT)
                assert table_checksums(standby) == table_checksums(primary)
                assert primary.execute("SELECT to_regclass('never_acknowledged')") == [(None,)]
                assert primary.execute("SELECT slot_name FROM pg_replication_slots") == []
                ledger.resume()
                ledger.wait_for_progress(20, TIMEOUT)
                standby.crash()
                promotion.kill()
            primary, standby = standby, primary


def test_a_lost_tail_is_not_replayed_when_the_new_primary_has_recycled_its_segment(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """pg_rewind leaves the old server's WAL in place, also its tail. If the new primary has removed
    that segment, no newer file replaces it."""
    world = failover_world()
    old, new = world.cluster.postgres, world.standby
    lose_with_a_tail(world)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        wait_until(lambda: has_recycled(new, fork_segment(new)), TIMEOUT, "the segment to go")
        done = sk(*rejoin_arguments(world, old, new))
        assert done.returncode == 0, done.stderr
        assert sk(*rejoin_arguments(world, old, new)).returncode == 0
        old.start()
        wait_replayed(old, new.flush_lsn(), TIMEOUT)
        assert old.execute("SELECT to_regclass('never_acknowledged')") == [(None,)]
        assert table_checksums(new) == table_checksums(old)


def test_missing_wal_that_the_standby_needs_is_reported_at_once(
    failover_world: Callable[..., FailoverWorld],
) -> None:
    """The standby would wait for it without end, and report it only in its log."""
    world = failover_world(safekeeper_arguments=("--wal-keep-size", "1MB"))
    old, new = world.cluster.postgres, world.standby
    lose_with_a_tail(world)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        fork_lsn = last_switch_lsn(TimelineHistory.parse(2, history_file(new).read_text()))
        write_wal(new, 8)
        wait_until(lambda: has_recycled(new, fork_segment(new)), TIMEOUT, "the segment to go")
        safekeepers = world.cluster.safekeepers
        wait_until(
            lambda: min(map(oldest_lsn, safekeepers)) > fork_lsn, TIMEOUT, "the WAL before to go"
        )
        done = sk(*rejoin_arguments(world, old, new))
        assert_refused(done, 1, "its recovery needs WAL from", "A new base backup is needed")
        assert (old.data_dir / "standby.signal").exists(), "it is never a primary again"
        old.configure(restore_command="false")
        again = sk(*rejoin_arguments(world, old, new))
        assert again.returncode == 0, again.stderr
        assert "its restore_command must fetch the rest" in again.stderr


def oldest_lsn(safekeeper: SafekeeperProcess) -> Lsn:
    timeline = safekeeper.timeline()
    assert timeline is not None
    return Lsn.parse(timeline["local_start_lsn"])


def history_file(promoted: Postgres) -> Path:
    return promoted.pg_wal / "00000002.history"


def fork_segment(promoted: Postgres) -> str:
    """The log and segment digits of the segment in which its timeline begins."""
    history = TimelineHistory.parse(2, history_file(promoted).read_text())
    return format_segment_name(2, last_switch_lsn(history) // SEG_SIZE, SEG_SIZE)[8:]


def has_recycled(postgres: Postgres, segment: str) -> bool:
    """It has recycled the segment, after another segment and a checkpoint."""
    postgres.execute("SELECT pg_logical_emit_message(false, 'next', 'segment'), pg_switch_wal()")
    postgres.execute("CHECKPOINT")
    return not any(path.name[8:] == segment for path in postgres.pg_wal.iterdir())


def test_errors_of_pg_rewind_are_explained(
    failover_world: Callable[..., FailoverWorld],
    postgres_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    world = failover_world()
    old, standby = world.cluster.postgres, world.standby
    refused = sk(*rejoin_arguments(world, old, old))
    assert_refused(refused, 1, "is running", "pg_ctl stop")
    refused = sk(*rejoin_arguments(world, old, standby))
    assert_refused(refused, 1, "the server is a standby", "primary")
    old.configure(wal_log_hints=False)
    old.restart()
    old.stop()
    if old.control_data()["Data page checksum version"] != "0":  # the default since version 18
        program = [old.binaries.program("pg_checksums"), "--disable", "-D", old.data_dir]
        run_program(program, account=server_account())
    world.lose(Loss.MACHINE)
    with world.promotion() as promotion:
        promotion.wait_streaming(TIMEOUT)
        before = (old.data_dir / "global" / "pg_control").read_bytes()
        refused = sk(*rejoin_arguments(world, old, standby))
        assert_refused(refused, 1, "neither data checksums nor wal_log_hints", "base backup")
        gone = list(rejoin_arguments(world, old, standby))
        gone[gone.index("--old-primary") + 1] = str(tmp_path / "gone")
        needed = "A new base backup is needed: take one from the new primary"
        assert_refused(sk(*gone), 1, 'gone" does not exist', needed)
        stranger = postgres_factory("stranger", fresh=True, start=False)
        stranger.init()
        refused = sk(*rejoin_arguments(world, stranger, standby))
        assert_refused(refused, 1, "the data directory belongs to system", "two different clusters")
        for mode in STOP_MODES:  # a server of the same timeline, as if it had been promoted, too
            with standby.base_backup(tmp_path / mode) as twin:
                twin.stop(mode)
            refused = sk(*rejoin_arguments(world, twin, standby))
            assert_refused(refused, 1, "is on timeline 2, like the new one", "base backup")
            assert not (twin.data_dir / "standby.signal").exists()
        assert (old.data_dir / "global" / "pg_control").read_bytes() == before
        assert not (old.data_dir / "standby.signal").exists()
