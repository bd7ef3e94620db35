"""`restore`: a restore of a lost server from the archive, against the stock way.

The peer is a careful DBA's way without us: a `pg_basebackup`, the files of `pg_receivewal`, and
`cp` as restore_command. Both have the same cluster and the same WAL in whole segments. Both are
timed from the empty folder until the server accepts writes.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import bulk_load, pgbench
from benchmarks.archive import archived_lsn
from benchmarks.primary import Primary
from benchmarks.rounds import Spread, Verdict, paired_ratios, samples_of
from benchmarks.setups import CONTROL, OURS, PEER, SafekeeperQuorum, attached
from quorum_wal.pg_fixtures.data_directory import WAL_SEG_SIZE
from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK, ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pg_server.program import run_program

COLUMNS = ("setup", "seconds", "seconds / peer")
MEGABYTES_PER_SCALE = 15
SECONDS_RATIO_MAX = 1.0
TIMEOUT = 900.0


@dataclass(frozen=True, slots=True)
class RestoreSample:
    """`seconds` until a new server accepts writes."""

    setup: str
    round: int
    seconds: float


class Material:
    """The input of both restores, created once: a cluster of that size, and as much WAL."""

    def __init__(self, binaries: PostgresBinaries, root: Path) -> None:
        self.binaries = binaries
        self.archive = root / "archive"
        self.base = root / "base"
        self.received = root / "received"
        self._root = root

    def make(self, megabytes: int) -> None:
        setup = SafekeeperQuorum(OURS, arguments=[f"--archive={self.archive}"])
        with (
            Primary(self.binaries, self._root) as primary,
            attached(primary, setup, self._root / "copies"),
            self._receiver(primary),
        ):
            pgbench.initialize(primary.postgres, max(1, megabytes // MEGABYTES_PER_SCALE))
            bulk_load.create_tables(primary)
            primary.postgres.base_backup(self.base, "--wal-method=none", "--checkpoint=fast")
            dsn = primary.postgres.dsn()
            create = ("backup", "create", "--archive", self.archive, "--from", dsn, "--no-wait")
            run_program([*SK, *map(str, create)], timeout=TIMEOUT)
            bulk_load.load(primary, megabytes)
            primary.execute("SELECT pg_switch_wal()")
            end_lsn = primary.insert_lsn() // WAL_SEG_SIZE * WAL_SEG_SIZE
            wait_until(lambda: archived_lsn(setup) >= end_lsn, TIMEOUT, "all to be archived")
            flushed = "SELECT 1 FROM pg_replication_slots WHERE slot_name = 'peer'"
            flushed += f" AND restart_lsn - '0/0' >= {end_lsn}"
            wait_until(lambda: primary.execute(flushed), TIMEOUT, "all to be received")

    @contextmanager
    def _receiver(self, primary: Primary) -> Iterator[None]:
        primary.execute("SELECT pg_create_physical_replication_slot('peer', true)")
        self.received.mkdir()
        with ServiceProcess(
            [
                self.binaries.program("pg_receivewal"),
                *(f"--dbname={primary.postgres.dsn()}", "--slot=peer", "--no-loop"),
                f"--directory={self.received}",
            ],
            log_path=self._root / "peer.log",
        ):
            yield

    # ---- restores

    def restore(self, setup: str, data_dir: Path) -> float:
        """Seconds until it accepts writes. Removes the result."""
        server = Postgres(self.binaries, data_dir, port=free_port())
        os.sync()
        begun = time.perf_counter()
        try:
            if setup == OURS:
                self._restore_ours(server, data_dir)
            else:
                self._restore_by_copies(server, data_dir)
            server.execute("CREATE TABLE restored ()")
            return time.perf_counter() - begun
        finally:
            stop: list[str | Path] = [
                self.binaries.program("pg_ctl"),
                "stop",
                "-m",
                "immediate",
                "-D",
                data_dir,
            ]
            run_program(stop, account=server_account(), check=False)
            server.crash()
            shutil.rmtree(data_dir)

    def _restore_ours(self, server: Postgres, data_dir: Path) -> None:
        data_dir.mkdir()
        account = server_account()
        if account is not None:
            os.chown(data_dir, account.uid, account.gid)
        options = f"-p {server.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories="
        run_program(
            [
                *SK,
                *("restore", "--archive", str(self.archive), "--data-dir", str(data_dir)),
                *("--pg-bin", str(self.binaries.bin_dir), "--start"),
                *("--server", server.dsn(), "--server-options", options),
            ],
            timeout=TIMEOUT,
        )

    def _restore_by_copies(self, server: Postgres, data_dir: Path) -> None:
        run_program(["cp", "--archive", self.base, data_dir], timeout=TIMEOUT)
        (data_dir / "recovery.signal").touch()
        settings = f"restore_command = 'cp {self.received}/%f %p'\nsynchronous_standby_names = ''\n"
        with (data_dir / "postgresql.auto.conf").open("a") as file:
            file.write(settings)
        server.start(TIMEOUT)
        wait_until(
            lambda: server.execute("SELECT pg_is_in_recovery()") == [(False,)],
            TIMEOUT,
            "its recovery to end",
        )


def measure(
    binaries: PostgresBinaries, directory: Path, rounds: int, megabytes: int
) -> Iterator[RestoreSample]:
    """Yields each sample when it is taken."""
    material = Material(binaries, directory)
    material.make(megabytes)
    for number in range(rounds):
        setups = (OURS, PEER, CONTROL)
        for setup in setups if number % 2 else reversed(setups):
            seconds = material.restore(setup, directory / "restored")
            yield RestoreSample(setup, number, seconds)


def table(samples: Sequence[RestoreSample]) -> list[list[str]]:
    """Medians, and the spread of the ratios to the peer in the same round."""
    rows = [list(COLUMNS)]
    for setup in (OURS, PEER, CONTROL):
        seconds = Spread.of([s.seconds for s in samples_of(samples, setup)])
        ratio = paired_ratios(samples, "seconds", setup, PEER).format(2)
        rows.append([setup, f"{seconds.median:.1f}", ratio])
    return rows


def verdicts(samples: Sequence[RestoreSample]) -> list[Verdict]:
    """Not slower than the stock way."""
    claim = f"seconds <= {SECONDS_RATIO_MAX} x peer"
    ours, control = (paired_ratios(samples, "seconds", name, PEER) for name in (OURS, CONTROL))
    return [Verdict(claim, ours, SECONDS_RATIO_MAX, False, control)]
