"""barman, unmodified: base backups of the primary, WAL from the safekeepers."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from stock_clients import TIMEOUT, slots_of, table_checksums

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.processes import ServiceProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.errors import Unavailable
from quorum_wal.pg_server.program import run_program

SEG_SIZE = 1 << 20
SERVER = "main"

#: from its quick start, and the source of WAL
CONFIGURATION = """
[barman]
barman_user = {user}
configuration_files_directory = {home}/conf.d
barman_home = {home}
barman_lock_directory = {home}
log_file = {home}/barman.log
log_level = DEBUG

[{server}]
conninfo = host=127.0.0.1 port={port} user=barman dbname=postgres
streaming_conninfo = host=127.0.0.1 port={port} user=streaming_barman
wal_streaming_conninfo = host={hosts} port={ports} user=streaming_barman
backup_method = postgres
streaming_archiver = on
slot_name = barman
create_slot = auto
path_prefix = {path_prefix}
"""


class Barman:
    """One `barman_home`, with one server in its configuration."""

    def __init__(self, cluster: QuorumCluster, home: Path) -> None:
        program = Path(sys.executable).with_name("barman")
        if not program.exists():
            raise Unavailable("barman is not installed", hint="make test installs it")
        if shutil.which("rsync") is None:
            raise Unavailable("rsync is not installed, which barman recovers with")
        (home / "conf.d").mkdir(parents=True)
        hosts, ports = zip(*(s.address.split(":") for s in cluster.safekeepers), strict=True)
        (home / "barman.conf").write_text(
            CONFIGURATION.format(
                user=getpass.getuser(), home=home, server=SERVER, port=cluster.postgres.port,
                hosts=",".join(hosts), ports=",".join(ports),
                path_prefix=cluster.postgres.binaries.program("psql").parent,
            )
        )  # fmt: skip
        self.home = home
        self._command = [str(program), f"--config={home / 'barman.conf'}"]

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return run_program([*self._command, *arguments], check=check, timeout=2 * TIMEOUT)

    def receiver(self) -> ServiceProcess:
        """The process that `barman cron` starts."""
        return ServiceProcess(
            [*self._command, "receive-wal", SERVER], log_path=self.home / "receive-wal.log"
        )


@pytest.fixture
def cluster(quorum_cluster: Callable[..., QuorumCluster]) -> QuorumCluster:
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE)
    cluster.postgres.execute("CREATE ROLE barman SUPERUSER LOGIN")
    cluster.postgres.execute("CREATE ROLE streaming_barman REPLICATION LOGIN")
    for number in range(4):
        cluster.postgres.execute(f"CREATE TABLE t{number} (id serial PRIMARY KEY, v text)")
    return cluster


def test_check_backup_and_recover(cluster: QuorumCluster, tmp_path: Path) -> None:
    """The recovered server has all commits after the backup, up to the last whole segment."""
    with skip_if_unavailable():
        barman = Barman(cluster, tmp_path / "barman")
    with barman.receiver() as receiver:
        receiver.wait_until(
            lambda: slots_of(cluster.safekeepers[0]).get("barman", {}).get("active"),
            TIMEOUT, "barman to receive WAL",
        )  # fmt: skip
        barman.run("switch-wal", "--force", "--archive", SERVER)
        checked = barman.run("check", SERVER)
        assert "FAILED" not in checked.stdout
        assert "replication slot (WAL streaming): OK" in checked.stdout
        insert(cluster.postgres, "before")
        barman.run("backup", "--wait", SERVER)
        insert(cluster.postgres, "behind")
        barman.run("switch-wal", "--force", "--archive", SERVER)
    recovered = recover(barman, cluster, tmp_path / "recovered")
    with recovered:
        wait_until(
            lambda: recovered.execute("SELECT NOT pg_is_in_recovery()") == [(True,)], TIMEOUT,
            "the end of the recovery",
        )  # fmt: skip
        assert table_checksums(recovered) == table_checksums(cluster.postgres)
    check_again = barman.run("check", SERVER, check=False)
    assert "not active: is 'receive-wal' running?" in check_again.stdout


def insert(postgres: Postgres, value: str) -> None:
    for number in range(4):
        postgres.execute(
            f"INSERT INTO t{number} (v) SELECT %s || g FROM generate_series(1, 2000) g", (value,)
        )


def recover(barman: Barman, cluster: QuorumCluster, folder: Path) -> Postgres:
    barman.run("recover", SERVER, "latest", str(folder))
    account = server_account()
    for path in (folder, *folder.rglob("*")) if account is not None else ():
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return Postgres(cluster.postgres.binaries, folder)
