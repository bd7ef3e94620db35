"""After a promotion a safekeeper answers about both timelines as the new primary does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from failover import failed_over, timeline_of
from psycopg import pq
from replication_client import Answer, ReplicationClient, ServerError

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.standby import replica_conninfo
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn

SEG_SIZE = 1 << 20
FILL = "SELECT pg_logical_emit_message(true, 'fill', repeat('x', 2 << 20))"


def outcome(client: ReplicationClient, command: str) -> list[Answer] | tuple[str, str]:
    """The results, or SQLSTATE and text. A stream is read to its end."""
    try:
        return client.command(command)
    except ServerError as error:
        return error.sqlstate, error.message


def streamed(client: ReplicationClient, begin_lsn: int, end_lsn: int, tli: int) -> bytes:
    client.start(f"START_REPLICATION {Lsn(begin_lsn)} TIMELINE {tli}")
    return client.receive_wal(begin_lsn, end_lsn)


def end_of_timeline(client: ReplicationClient) -> list[Answer]:
    """The messages after the CopyDone of the server, and its answer to ours."""
    while client.receive() is not None:
        continue
    result = client.pgconn.get_result()
    assert result is not None
    assert result.status == pq.ExecStatus.COPY_IN
    client.pgconn.put_copy_end()
    return client.results()


def test_both_timelines(
    quorum_cluster: Callable[..., QuorumCluster],
    standby_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    cluster = quorum_cluster(wal_seg_size=SEG_SIZE, settings={"wal_keep_size": "64MB"})
    keeper = cluster.safekeepers[0]
    standby = standby_factory(
        cluster.postgres, "standby", cluster.replica_conninfo(), wal_retrieve_retry_interval="200ms"
    )
    cluster.postgres.execute(FILL)
    with failed_over(cluster, standby):
        standby.execute(FILL)
        end_lsn = int(standby.flush_lsn())
        cluster.wait_flushed(end_lsn)
        status = timeline_of(keeper)
        history = TimelineHistory.parse(status["tli"], status["tli_history"])
        switch_lsn = history.entries[0].switch_lsn
        segment_lsn = switch_lsn - switch_lsn % SEG_SIZE
        with (
            ReplicationClient(replica_conninfo([keeper.address])) as ours,
            ReplicationClient(standby.dsn()) as theirs,
        ):
            for command in (
                "TIMELINE_HISTORY 2",
                "TIMELINE_HISTORY 1",
                f"START_REPLICATION {switch_lsn} TIMELINE 1",  # nothing to stream
                f"START_REPLICATION {Lsn(switch_lsn + 8)} TIMELINE 1",
                f"START_REPLICATION {Lsn(segment_lsn)} TIMELINE 3",
            ):
                assert outcome(ours, command) == outcome(theirs, command), command

            old = [streamed(client, segment_lsn, switch_lsn, 1) for client in (ours, theirs)]
            assert old[0] == old[1]
            (our_end, *tags), (their_end, *their_tags) = map(end_of_timeline, (ours, theirs))
            assert (our_end, tags) == (their_end, their_tags)
            assert our_end.rows == ((b"2", str(switch_lsn).encode()),)
            assert tags[-1].tag == "START_REPLICATION"

            new = [streamed(client, segment_lsn, end_lsn, 2) for client in (ours, theirs)]
            assert new[0] == new[1]
            assert new[0].startswith(old[0])
        with ReplicationClient(replica_conninfo([keeper.address])) as client:
            client.start(f"START_REPLICATION {Lsn(segment_lsn - SEG_SIZE)} TIMELINE 2")
            assert client.receive() is None
            with pytest.raises(ServerError, match="has already been removed") as error:
                client.results()
            assert "segment 00000002" in error.value.message
            assert error.value.sqlstate == "58P01"
