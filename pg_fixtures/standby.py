"""`make_standby`: a standby from a base backup of a primary, with a given source of WAL.

standby = make_standby(cluster.postgres, tmp_path / "standby", cluster.replica_conninfo())
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.data_directory import SUPERUSER, DataDirectory, Setting
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

SIGNAL_FILE = "standby.signal"


def replica_conninfo(addresses: Sequence[str], **extra: str) -> str:
    """A connection string for a replica: it uses the first of these (host:port) that answers."""
    hosts, ports = zip(*(address.rsplit(":", 1) for address in addresses), strict=True)
    keywords: dict[str, str] = {
        "host": ",".join(hosts),
        "port": ",".join(ports),
        "user": SUPERUSER,
        "sslmode": "disable",
        "gssencmode": "disable",
        "connect_timeout": "5",  # WAL receivers ignore it, and use the next one
        "tcp_user_timeout": "5000",
    }
    return make_conninfo("", **{**keywords, **extra})


def make_standby(primary: Postgres, path: Path, conninfo: str, **settings: Setting) -> Postgres:
    """Not started. `primary` is only the source of the backup; the WAL comes from `conninfo`."""
    standby = primary.base_backup(path)
    DataDirectory(path, primary.binaries).write(SIGNAL_FILE, "")
    standby.configure(primary_conninfo=conninfo, **settings)
    return standby


def replayed_lsn(standby: Postgres) -> Lsn:
    """The position up to which the standby has replayed WAL."""
    ((lsn,),) = standby.execute("SELECT pg_last_wal_replay_lsn()::text")
    return Lsn.parse(lsn) if lsn else Lsn(0)


def wait_replayed(standby: Postgres, lsn: int, timeout: float) -> None:
    """Returns when the standby has replayed all WAL below `lsn`. Raises DeadlineExceeded."""
    wait_until(
        lambda: replayed_lsn(standby) >= lsn, timeout, f"{standby.data_dir.name} at {Lsn(lsn)}"
    )
