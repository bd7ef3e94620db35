"""The receiving end of a daisy chain: WAL from another safekeeper, for one leader's connection.

    source --START_REPLICATION (node_id, chained)--> this thread --ChainedWal--> timeline: write,
                                                                     one fdatasync, one answer
    the connection's own thread <--wake-- the answer, or the reason why the chain ended

A thread reads; batches that arrive together share a flush. The thread of the leader's connection
sends the answers and the error: no other thread may write to that connection. Laws: only WAL that
the acceptor takes for this connection and ballot is written. When the source's stream ends, for any
reason, the leader's connection is closed, and the leader then streams to this member itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from threading import Thread

import psycopg
import structlog
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.pgclient.connection import connect_safekeeper
from quorum_wal.pgclient.errors import ConnectionLost, PgClientError
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwire.commands import StartReplication, format_start_replication
from quorum_wal.pgwire.startup import format_options
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.events import ChainedWal, TakeWal
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.storage.errors import StorageError

log = structlog.get_logger()

BATCH_BYTES_MAX = 1024 * 1024
# A source that is alive sends at least a keepalive a second.
SILENCE_SECONDS = 5.0
WRONG_STATE = "55000"


class ChainedReader:
    """Serves one TakeWal. `conninfo`: what libpq needs besides host and port. `wake` is called when
    `take_answer` has a new answer or an error."""

    def __init__(
        self, timeline: Timeline, order: TakeWal, conninfo: str, wake: Callable[[], None]
    ) -> None:
        self._timeline = timeline
        self._order = order
        self._conninfo = conninfo
        self._wake = wake
        self._is_over = False
        self._answer: bytes | None = None
        self._error: SafekeeperError | None = None

    @property
    def source(self) -> str:
        host, port = self._order.host, self._order.port
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def start(self) -> None:
        Thread(target=self._run, name=f"chain-{self._order.connection}", daemon=True).start()

    def close(self) -> None:
        """Tells the thread to end. It ends with the next message of the source, or when the source
        is silent for too long; it discards what it reads until then."""
        self._is_over = True

    def take_answer(self) -> bytes | None:
        """Returns the newest answer, which replaces those before it. Raises SafekeeperError when
        the chain has ended."""
        if self._error is not None:
            raise self._error
        answer, self._answer = self._answer, None
        return answer

    def _run(self) -> None:
        log.info("chained", source=self.source, begin_lsn=format_lsn(self._order.begin_lsn))
        reason: Exception
        try:
            with closing(self._connect()) as connection:
                self._read(connection)
            reason = ConnectionLost("the stream ended")
        except (PgClientError, SafekeeperError, StorageError) as error:
            reason = error
        except Exception as bug:
            self._fail(bug)
            raise
        self._fail(reason)

    def _fail(self, reason: Exception) -> None:
        if self._is_over:
            return
        log.warning("chain ended", source=self.source, reason=str(reason))
        self._error = SafekeeperError(
            f"could not take WAL from safekeeper {self.source}: {reason}", sqlstate=WRONG_STATE
        )
        self._wake()

    def _connect(self) -> psycopg.Connection:
        order, timeline = self._order, self._timeline.control.timeline
        names = {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}
        return connect_safekeeper(
            self._conninfo,
            host=order.host,
            port=order.port,
            dbname="replication",
            options=format_options(names),
            user=conninfo_to_dict(self._conninfo).get("user") or "walproposer",
        )

    def _read(self, connection: psycopg.Connection) -> None:
        order, pgconn = self._order, connection.pgconn
        options = {"node_id": str(order.node_id), "chained": "true"}
        command = StartReplication(Lsn(order.begin_lsn), options=options)
        if not start_copy(pgconn, format_start_replication(command)):
            raise ConnectionLost("the source did not start CopyBoth")
        lsn = order.begin_lsn
        for batch in ReplicationStream(pgconn, lsn, SILENCE_SECONDS).batches(BATCH_BYTES_MAX):
            if self._is_over:
                return
            events: list[ChainedWal] = []
            for wal in filter(len, batch):
                events.append(ChainedWal(order.connection, order.node_id, lsn, wal))
                lsn += len(wal)
            answers = self._timeline.receive_chained(order.connection, events) if events else []
            if answers:
                self._answer = answers[-1]
                self._wake()
