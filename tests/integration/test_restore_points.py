"""Restores to a moment, named by position, time or transaction, before and after a failover: each
equals a dump of that moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from failover import failed_over
from restored import SEGMENT_BYTES, archiving, restored_at, take_backup

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries

#: Not "before lsn": the three behind prove each name, and two before that a failover is left out.
CHOSEN = ("before time", "before xid", "behind lsn", "behind time", "behind xid")
FILL = "INSERT INTO t SELECT {n}, repeat(md5(g::text), 4) FROM generate_series(1, 300) g"


@dataclass(frozen=True)
class Moment:
    """The content of the server, and the names of that moment."""

    dump: str
    lsn: str
    time: str
    xid: str

    @property
    def names(self) -> dict[str, str]:
        return {"lsn": self.lsn, "time": self.time, "xid": self.xid}


def dump(server: Postgres) -> str:
    """Without the lines that are random."""
    lines = server.client("pg_dump").splitlines()
    return "\n".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict")))


def moment(server: Postgres, number: int) -> Moment:
    """The present moment, between two transactions. The last one was prepared, with more than its
    number in its record; the next one is about to commit."""
    server.execute(FILL.format(n=number))
    with server.connect(autocommit=False) as connection:
        connection.execute("CREATE TABLE dropped (a int)")
        connection.execute(f"CREATE TABLE t{number} AS SELECT 1 AS a")
        connection.execute("DROP TABLE dropped")
        ((xid,),) = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
        connection.execute("PREPARE TRANSACTION 'two phases'")
    server.execute("COMMIT PREPARED 'two phases'")
    with server.connect(autocommit=False) as connection:
        connection.execute(FILL.format(n=-number))
        made = dump(server)
        ((time,),) = connection.execute("SELECT clock_timestamp()").fetchall()
        # Only the COMMIT below begins at this position: a server that has replayed it has the rows.
        ((lsn,),) = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchall()
    return Moment(made, lsn, time.isoformat(), xid)


@contextmanager
def history_of_two_timelines(
    cluster: QuorumCluster, archive: Path, standby: Postgres
) -> Iterator[tuple[Moment, Moment]]:
    """A backup, a moment, a failover, another moment, and more WAL."""
    primary = cluster.postgres
    primary.execute("CREATE TABLE t (a int, b text)")
    take_backup(archive, primary)
    before = moment(primary, 1)
    with failed_over(cluster, standby):
        behind = moment(standby, 2)
        standby.execute(FILL.format(n=3))
        yield before, behind


@pytest.mark.parametrize("pg_binaries", [18], indirect=True)
def test_a_restored_moment_equals_its_dump(
    pg_binaries: PostgresBinaries,
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    archive = tmp_path / "archive"
    cluster = quorum_cluster(
        wal_seg_size=SEGMENT_BYTES,
        settings={"max_prepared_transactions": 5},
        safekeeper_arguments=archiving(archive),
    )
    standby = standby_factory(cluster.postgres, "standby", cluster.replica_conninfo())
    safekeepers = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    with history_of_two_timelines(cluster, archive, standby) as (before, behind):
        for words in CHOSEN:
            made = before if words.startswith("before") else behind
            kind = words.split()[1]
            target = (f"--target-{kind}", made.names[kind], "--safekeepers", safekeepers)
            with restored_at(pg_binaries, tmp_path / words.replace(" ", "-")) as restored:
                done = restored.restore(archive, *target, "--start", *restored.starting)
                assert done.returncode == 0, done.stderr
                assert dump(restored) == made.dump, words
                # With the backup's own setting it would wait for a proposer, which it does not
                # have.
                assert restored.execute("SHOW synchronous_standby_names") == [("",)]
                restored.execute("INSERT INTO t VALUES (0, 'nobody confirms it')")
    assert before.dump.count("\n") > 300
    assert len(before.dump) < len(behind.dump)
