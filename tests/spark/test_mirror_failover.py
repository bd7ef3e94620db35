"""A mirror while clients write, and workers, the command, a safekeeper and the primary are killed:
it equals the new primary. What only the old primary had is in no mirror."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable
from failover_world import TIMEOUT, FailoverWorld, Loss
from mirror_workload import Workload
from mirror_world import assert_equal, create_tables

from quorum_wal.objectstore.archive import find_timelines
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.version import TableFormat, Version, Versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WORKER = b"pyspark.daemon\0pyspark.worker\0"
TRANSACTIONS = 15
#: Transactions of a connection, and then a pause. Without one, the clients take what the other
#: processes need, and the mirror reads much more. To connect costs more than some transactions.
ROUND, PAUSE_SECONDS = 5, 0.5


def test_kill_9_of_everything(
    session: SparkSession, failover_world: FailoverWorld, archive_folder: Path, tmp_path: Path
) -> None:
    """Its tables are Delta tables."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    world, mirror = failover_world, tmp_path / "mirror"
    primary = world.cluster.postgres
    create_tables(primary)
    Workload(primary, Random(seed)).run(TRANSACTIONS)
    wait_until(lambda: find_timelines(LocalStore(str(archive_folder))), TIMEOUT, "the archive")
    with Clients(Workload(primary, Random(seed + 1), world.clients_dsn)) as clients:
        command = command_of(world, archive_folder, mirror)
        with running(command, tmp_path / "log") as process:
            next_line(process, "snapshot", tmp_path / "log")
            next_line(process, "version", tmp_path / "log")
            for pid in python_workers(process.pid):
                os.kill(pid, signal.SIGKILL)
            world.cluster.safekeepers[0].kill()
            next_line(process, "version", tmp_path / "log")
            clients.wait_for(TRANSACTIONS)
        world.cluster.safekeepers[0].start()
        world.lose(Loss.CUT_OFF)
        commit_alone(primary)
        alone = waiting_copy(world, archive_folder, tmp_path / "alone")
        with world.promotion() as promotion:
            promotion.wait_streaming(TIMEOUT)
            with pytest.raises(MirrorError, match="is on timeline 1, the WAL ends on timeline 2"):
                alone.result(TIMEOUT)
            primary.crash()
            clients.wait_for(TRANSACTIONS)
            clients.stop()
            apply_all(session, world, archive_folder, mirror)
            assert_equal(world.standby, mirror)
            assert_no_version(tmp_path / "alone")
    assert_delta_tables(mirror)


def command_of(world: FailoverWorld, archive: Path, mirror: Path) -> list[str]:
    return [
        *SK, "spark", "mirror", "--into", str(mirror), "--path", str(archive),
        "--safekeepers", ",".join(world.addresses), "--dsn", world.cluster.postgres.dsn(),
        "--table", "shop.*", "--format", "delta", "--master", "local[2,4]", "--interval", "0.5",
    ]  # fmt: skip


def settings(world: FailoverWorld, archive: Path, mirror: Path) -> MirrorSettings:
    return MirrorSettings(
        url=str(mirror),
        source={"path": str(archive), "safekeepers": ",".join(world.addresses)},
        dsn=world.cluster.postgres.dsn(),
        selection=Selection(("shop.*",)),
        table_format=TableFormat.DELTA,
    )


def commit_alone(postgres: Postgres) -> None:
    """What a quorum never gets: the primary shows it, because it does not wait. This includes the
    transactions whose clients wait for the quorum, and the end of those that are prepared."""
    with postgres.connect() as connection:
        connection.execute("SET synchronous_commit = local")
        connection.execute(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
            connection.execute(f"ROLLBACK PREPARED '{gid}'".encode())
        connection.execute("INSERT INTO shop.items VALUES (-1, 'lost', 1)")
        connection.execute("INSERT INTO shop.log VALUES (NULL, 'lost')")


def waiting_copy(world: FailoverWorld, archive: Path, mirror: Path) -> Future[tuple[Version, bool]]:
    """A first copy of the cut-off primary, which waits for the WAL of `commit_alone`."""
    waiting = threading.Event()
    stream = MirrorStream(settings(world, archive, mirror), report_seconds=0.0)
    pool = ThreadPoolExecutor(1)
    copying = pool.submit(stream.begin, lambda line: waiting.set())
    pool.shutdown(wait=False)
    wait_until(lambda: waiting.is_set() or copying.done(), TIMEOUT, "the copy to wait")
    assert waiting.is_set(), copying.result()
    return copying


def apply_all(session: SparkSession, world: FailoverWorld, archive: Path, mirror: Path) -> None:
    """Runs the mirror until it has the last transaction, which this writes."""
    before_lsn = world.standby.flush_lsn()
    world.standby.execute("INSERT INTO public.other VALUES (12345)")
    versions = Versions(open_store(str(mirror)))

    def has_all() -> bool:
        stream = MirrorStream(settings(world, archive, mirror))
        stream.run(session, interval=None, on_applied=lambda _: None, is_stopping=lambda: False)
        version = versions.newest()
        return version is not None and version.position >= before_lsn

    wait_until(has_all, TIMEOUT, "the mirror to have the last transaction")


def assert_no_version(mirror: Path) -> None:
    assert Versions(open_store(str(mirror))).newest() is None


def assert_delta_tables(mirror: Path) -> None:
    version = Versions(open_store(str(mirror))).newest()
    assert version is not None
    for each in version.tables:
        if each.is_partitioned:
            continue
        table = DeltaTable(mirror / each.name)
        files = {f"{each.name}/{Path(uri).name}" for uri in table.file_uris()}
        assert files == {file.path for file in each.files}
        assert table.to_pyarrow_table().num_rows == each.rows


# ---- the clients


class Clients:
    """A context manager: a thread that writes, and connects again to the server that accepts
    writes."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._stopping = threading.Event()
        self._transactions = 0
        self._pool = ThreadPoolExecutor(1)

    def __enter__(self) -> Clients:
        self._running = self._pool.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._pool.shutdown(wait=False)  # a commit may wait until its server ends

    def _run(self) -> None:
        while not self._stopping.is_set():
            with suppress(psycopg.OperationalError):
                self._workload.run(ROUND)
            self._transactions += ROUND
            self._stopping.wait(PAUSE_SECONDS)

    def wait_for(self, transactions: int) -> None:
        """Returns after so many more."""
        wanted = self._transactions + transactions
        wait_until(
            lambda: self._transactions >= wanted or self._running.done(), TIMEOUT, "the clients"
        )

    def stop(self) -> None:
        """Ends all transactions, and raises the error of a statement."""
        self._stopping.set()
        self._running.result(TIMEOUT)
        self._workload.finish()


# ---- the command


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[str]]:
    """Killed with all of its processes at the end, at a random moment of a batch."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def next_line(process: subprocess.Popen[str], begin: str, log: Path) -> None:
    assert process.stdout is not None
    assert process.stdout.readline().startswith(begin), log.read_text()


def python_workers(session_id: int) -> list[int]:
    """The processes of the command's session that run Spark's workers."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        pid = int(path.parent.name)
        try:
            if os.getsid(pid) == session_id and WORKER in path.read_bytes():
                found.append(pid)
        except OSError:
            continue  # it has ended
    return found
