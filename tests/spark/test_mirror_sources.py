"""A mirror whose first rows come from a backup in the archive, and a mirror in S3."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from mirror_workload import Workload
from mirror_world import assert_equal, create_tables
from random_mirrors import PREPARED_MAX, settings
from restored import SEGMENT_BYTES, TIMEOUT, archiving, take_backup
from s3_server import S3Server
from sk_command import assert_refused, sk

from quorum_wal.cli.backup_server import BackupServer, BackupSource
from quorum_wal.objectstore.store import open_store
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.pageserver import PageserverProcess
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.mirror.version import Versions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABASE = "dbname=postgres user=postgres"


def apply(session: SparkSession, wanted: MirrorSettings) -> None:
    MirrorStream(wanted).run(
        session, interval=None, on_applied=lambda _: None, is_stopping=lambda: False
    )


@pytest.mark.parametrize("has_cut", [False, True], ids=["base backup", "cut"])
def test_from_a_backup(
    session: SparkSession,
    quorum_cluster: Callable[..., QuorumCluster],
    tmp_path: Path,
    has_cut: bool,
) -> None:
    """The server is gone afterwards, also after kill -9 of the command."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    archive, mirror, work = (tmp_path / name for name in ("archive", "mirror", "work"))
    work.mkdir()
    cluster = quorum_cluster(
        wal_seg_size=SEGMENT_BYTES,
        safekeeper_arguments=archiving(archive),
        settings={"max_prepared_transactions": PREPARED_MAX},
    )
    primary, load = cluster.postgres, Workload(cluster.postgres, Random(seed))
    create_tables(primary)
    load.run(20)
    where = ("spark", "mirror", "--into", mirror, "--path", archive, "--from-backup", "--once")
    named = (*where, "--dsn", DATABASE, "--table", "shop.*", "--work-dir", work)
    wait_until(lambda: any(archive.glob("*/*/timeline.json")), TIMEOUT, "the archive to be there")
    assert_refused(sk(*named), 1, "there is no backup", "Take one")
    load.free_tables()  # at the position of a backup or cut, where they would stay locked
    take_backup(archive, primary)
    load.run(20)
    load.free_tables()
    first_lsn = make_cut(cluster, archive, tmp_path / "pageserver") if has_cut else 0
    kill_while_its_server_runs([*SK, *map(str, named)], work)

    safekeepers = ",".join(each.address for each in cluster.safekeepers)
    wanted = replace(
        settings(primary, mirror), source={"path": str(archive), "safekeepers": safekeepers}
    )
    source = BackupSource(str(archive), (), None, primary.binaries.bin_dir, work)
    with BackupServer(source, DATABASE) as server:
        assert MirrorStream(replace(wanted, dsn=server.dsn)).begin()[1]
    begun = Versions(open_store(str(mirror))).newest()
    assert begun is not None
    assert begun.position >= first_lsn - 1, "it has the commits before the cut"
    assert servers_in(work) == []
    load.finish()
    load.run(10)
    load.free_tables()
    last_lsn = primary.flush_lsn()

    def has_all() -> bool:
        apply(session, wanted)
        version = Versions(open_store(str(mirror))).newest()
        return version is not None and version.position >= last_lsn

    primary.execute("INSERT INTO public.other VALUES (12345)")
    wait_until(has_all, TIMEOUT, "the mirror to have the last transaction")
    assert_equal(primary, mirror)


def make_cut(cluster: QuorumCluster, archive: Path, data_dir: Path) -> int:
    """Behind all WAL of now. Returns its position."""
    primary = cluster.postgres
    addresses = [each.address for each in cluster.safekeepers]
    pageserver = PageserverProcess(archive, addresses, data_dir, arguments=["--cut-bytes", "1MB"])
    with pageserver:
        # At least --cut-bytes behind a cut that it makes meanwhile.
        primary.execute("SELECT pg_logical_emit_message(false, '', repeat('x', 1 << 21))")
        primary.execute("CHECKPOINT")
        ((lsn,),) = primary.execute("SELECT redo_lsn::text FROM pg_control_checkpoint()")
        return int(Lsn.parse(pageserver.wait_cut(int(Lsn.parse(lsn)), TIMEOUT)["cut_lsn"]))


def kill_while_its_server_runs(command: list[str], work: Path) -> None:
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        wait_until(lambda: servers_in(work) or process.poll() is not None, TIMEOUT, "the server")
        assert process.poll() is None, process.stderr.read()
        process.kill()
    wait_until(lambda: not servers_in(work), TIMEOUT, "the server to end")


def servers_in(folder: Path) -> list[str]:
    """The command lines of servers with files in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended
        if words[0].endswith("postgres") and any(str(folder) in word for word in words):
            found.append(" ".join(words))
    return found


def test_in_s3(session: SparkSession, wal_server: Callable[..., Postgres], tmp_path: Path) -> None:
    """If two commands begin one mirror, one fails."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    with (
        S3Server(tmp_path / "moto_server.log") as s3,
        wal_server(tmp_path / "data", max_prepared_transactions=PREPARED_MAX) as postgres,
    ):
        url, options = f"{s3.new_bucket()}/mirror", s3.options()
        create_tables(postgres)
        load = Workload(postgres, Random(seed))
        load.run(15)
        load.finish()
        wanted = replace(settings(postgres, tmp_path), url=url, store_options=options)
        with ThreadPoolExecutor(2) as pool:
            both = [pool.submit(MirrorStream(wanted).begin) for _ in range(2)]
            errors = [each.exception() for each in both]
        ((error,),) = [[each for each in errors if each is not None]]
        assert isinstance(error, MirrorError)
        assert "version 1 of" in str(error)
        load.run(15)
        load.finish()
        apply(session, wanted)
        assert_equal(postgres, url, options)
        newest = Versions(open_store(url, options)).newest()
        assert newest is not None
        with pytest.raises(MirrorError, match="exists already"):
            Versions(open_store(url, options)).create(newest)
