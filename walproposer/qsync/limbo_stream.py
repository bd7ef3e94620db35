"""A logical two-phase stream of one database, which reports prepared transactions as they happen.

    CREATE PUBLICATION sk_qsync                                    -- of no table
    CREATE_REPLICATION_SLOT sk_qsync_OID LOGICAL pgoutput (TWO_PHASE, SNAPSHOT 'nothing')
    START_REPLICATION SLOT sk_qsync_OID LOGICAL 0/0 (proto_version '3', two_phase 'on', ...)

It gives the exact end of each PREPARE, and the transactions that have ended. A reading of
pg_prepared_xacts gives only bounds. No verdict depends on the stream: it reports a PREPARE before
the quorum has it. So if there is no stream (older server, wal_level, no free slot), `state` gives
the reason, and the limbo is read instead.

Law: the creation of a slot waits for every prepared transaction, forever if this coordinator must
finish it. So a slot is created while nothing is prepared, and lock_timeout ends the wait for a
transaction that is prepared meanwhile. An existing slot waits for nothing. A database with a slot
cannot be dropped. So the slot is dropped when no transaction of qsync has been prepared there for
UNUSED_SECONDS. A slot that a user has dropped is not created again. Sources: Postgres `pgoutput.c`,
`replication/logical/snapbuild.c`; measured in tests/contract/qsync.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from threading import Event, Thread
from typing import NoReturn

import psycopg
import structlog
from psycopg import pq, sql

from quorum_wal.pgclient.errors import PgClientError, ServerError, Silent
from quorum_wal.pgclient.results import (
    arrived_copy_data,
    next_result,
    receive_copy_data,
    run_command,
)
from quorum_wal.pgclient.stream import start_copy
from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.logical import (
    BeginPrepare,
    CommitPrepared,
    Prepare,
    RollbackPrepared,
    parse_logical_message,
)
from quorum_wal.pgwire.replication import (
    Keepalive,
    StandbyStatus,
    parse_server_message,
    postgres_time_us,
)
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.connection import converting_errors, open_connection
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.primary.logical_slots import SLOT_PREFIX
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.qsync.primary_session import APPLICATION_NAME, PrimarySession
from quorum_wal.walproposer.qsync.worker import Failed

log = structlog.get_logger()

PUBLICATION = "sk_qsync"
MAJOR_MIN = 15
#: For the creation of a slot. It waits for every running transaction, one after the other.
LOCK_TIMEOUT_MS = 1000
RETRY_SECONDS = 1.0
#: After an error that only an administrator can fix.
LATE_RETRY_SECONDS = 60.0
#: The slot is dropped if no transaction of qsync was prepared in the database for this long.
UNUSED_SECONDS = 600.0
#: Interval of status messages, with which the slot releases WAL.
STATUS_SECONDS = 1.0
#: Time until `close` takes effect.
WAIT_SECONDS = 0.2
#: No verdict waits for the stream, so messages that come within this time share a wake-up.
GATHER_SECONDS = 0.005
#: Messages before a status message.
MESSAGES_A_TURN = 1000

STREAMING = "streaming"
STARTING = "starting"
CLOSED = "closed"

_FACTS = (
    "SELECT current_setting('server_version_num')::int / 10000, current_setting('wal_level'),"
    " (SELECT oid::text FROM pg_database WHERE datname = current_database())"
)
_SLOT = "SELECT plugin, two_phase, wal_status FROM pg_replication_slots WHERE slot_name = %s"
_DROP_SLOT = "SELECT pg_drop_replication_slot(%s)"
_PREPARED_COUNT = "SELECT count(*) FROM pg_prepared_xacts"
_HAS_PUBLICATION = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = %s)"
_CREATE_SLOT = "CREATE_REPLICATION_SLOT \"{}\" LOGICAL pgoutput (TWO_PHASE, SNAPSHOT 'nothing')"
_OPTIONS = f"(proto_version '3', publication_names '{PUBLICATION}', two_phase 'on')"

#: Called with a message, on the stream's thread.
Told = Callable[[str, Prepare | CommitPrepared | RollbackPrepared], None]


class _NoStream(Exception):
    """There is no stream now; the text is the state. `seconds`: time until the next attempt."""

    def __init__(self, state: str, seconds: float = RETRY_SECONDS) -> None:
        super().__init__(state)
        self.seconds = seconds


class _Unused(Exception):
    """The slot was dropped, and is not needed."""


class LimboStream:
    """Runs a thread until `close`, or until the database is unused. `session` is of the database,
    for this thread. Any thread may call `use`."""

    def __init__(
        self,
        address: PrimaryAddress,
        session: PrimarySession,
        database: str,
        told: Told,
        failed: Failed,
    ) -> None:
        self.database = database
        #: "streaming", or the reason why there is no stream. Other threads may read it.
        self.state = STARTING
        self.has_streamed = False
        self.unused_seconds = UNUSED_SECONDS
        self._used_at = time.monotonic()
        self._address = address
        self._session = session
        self._told = told
        self._failed = failed
        self._closing = Event()
        self._acknowledged_lsn = 0
        self._thread = Thread(target=self._run, name="qsync-stream", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended."""
        return self.state == CLOSED

    @property
    def is_unused(self) -> bool:
        """Whether it has been unused for so long that its slot is dropped."""
        return time.monotonic() - self._used_at >= self.unused_seconds

    def use(self) -> None:
        """A transaction of qsync is prepared there."""
        self._used_at = time.monotonic()

    def close(self) -> None:
        """Ends within WAIT_SECONDS; this does not wait for it."""
        self._closing.set()

    def _run(self) -> None:
        try:
            self._listen()
        except Exception as bug:
            self._failed(bug)
            raise

    def _listen(self) -> None:
        while not self._closing.is_set():
            try:
                slot = self._ready_slot()
                self._session.close()  # the stream may last long
                self._stream(slot)
                seconds = RETRY_SECONDS
            except _Unused:
                break
            except _NoStream as reason:
                self._set_state(str(reason))
                seconds = reason.seconds
            except (WalProposerError, PgClientError, ProtocolError) as error:
                self._set_state(" ".join(str(error).split()))
                seconds = RETRY_SECONDS
            finally:
                self._session.close()
            self._closing.wait(seconds)
        self._set_state(CLOSED)

    def _set_state(self, state: str) -> None:
        if state == self.state:
            return
        self.state = state
        if state != CLOSED:
            log.info("stream of prepared transactions", database=self.database, state=state)

    # ---- the slot

    def _ready_slot(self) -> str:
        """The slot, created if possible. Raises _NoStream, _Unused, WalProposerError."""
        with self._session.opened("could not prepare a logical stream") as connection:
            row = connection.execute(_FACTS).fetchone()
            assert row is not None
            major, wal_level, oid = row
            if major < MAJOR_MIN:
                raise _NoStream(f"Postgres {major} has no such stream, 15 has", LATE_RETRY_SECONDS)
            if wal_level != "logical":
                raise _NoStream(f"no stream: wal_level is {wal_level}", LATE_RETRY_SECONDS)
            slot = f"{SLOT_PREFIX}{oid}"
            exists = self._slot_exists(connection, slot)
            if self.is_unused or (self.has_streamed and not exists):
                self._drop_slot(connection, slot if exists else "")
            if not exists:
                self._create_slot(connection, slot)
        return slot

    def _drop_slot(self, connection: psycopg.Connection, slot: str) -> NoReturn:
        """`slot` "": the database has none."""
        if slot:
            connection.execute(_DROP_SLOT, (slot,))
        reason = "nothing was prepared there lately" if slot else "a user dropped the slot"
        log.info("logical stream not needed", database=self.database, reason=reason)
        raise _Unused

    def _slot_exists(self, connection: psycopg.Connection, slot: str) -> bool:
        row = connection.execute(_SLOT, (slot,)).fetchone()
        if row is None:
            return False
        plugin, is_two_phase, wal_status = row
        if plugin != "pgoutput" or not is_two_phase:
            raise _NoStream(
                f"replication slot {slot} belongs to another program", LATE_RETRY_SECONDS
            )
        if wal_status != "lost":
            return True
        log.warning("logical slot lost its WAL, and is created again", slot=slot)
        connection.execute(_DROP_SLOT, (slot,))
        self.has_streamed = False
        return False

    def _create_slot(self, connection: psycopg.Connection, slot: str) -> None:
        """The publication comes first: the slot sees only what existed before it."""
        row = connection.execute(_PREPARED_COUNT).fetchone()
        if row is None or row[0]:
            raise _NoStream("no stream yet: its slot is created while nothing is prepared")
        row = connection.execute(_HAS_PUBLICATION, (PUBLICATION,)).fetchone()
        if row is None or not row[0]:
            name = sql.Identifier(PUBLICATION)
            connection.execute(sql.SQL("CREATE PUBLICATION {}").format(name))
        with closing(self._replication_connection()) as replication:
            try:
                run_command(replication.pgconn, _CREATE_SLOT.format(slot))
            except ServerError as error:
                if error.sqlstate == psycopg.errors.LockNotAvailable.sqlstate:
                    raise _NoStream(
                        "no stream yet: its slot waits for open transactions"
                    ) from error
                raise
        log.info("logical slot created", database=self.database, slot=slot)

    def _replication_connection(self) -> psycopg.Connection:
        return open_connection(
            self._address.dsn,
            f"the primary ({self._address})",
            replication="database",
            dbname=self.database,
            application_name=APPLICATION_NAME,
            options=f"-c lock_timeout={LOCK_TIMEOUT_MS}",
        )

    # ---- the stream

    def _stream(self, slot: str) -> None:
        """Runs until it is closed or unused, or the server ends the stream. Raises PgClientError,
        ProtocolError, WalProposerError."""
        with closing(self._replication_connection()) as connection:
            pgconn = connection.pgconn
            command = f'START_REPLICATION SLOT "{slot}" LOGICAL 0/0 {_OPTIONS}'
            if not start_copy(pgconn, command):
                raise Unreachable("the primary did not start a logical stream")
            self._set_state(STREAMING)
            self.has_streamed = True
            self._acknowledged_lsn = 0
            next_status = 0.0
            while not self._closing.is_set() and not self.is_unused:
                is_asked = self._receive(pgconn)
                now = time.monotonic()
                if is_asked or now >= next_status:
                    next_status = now + STATUS_SECONDS
                    self._acknowledge(pgconn)

    def _receive(self, pgconn: pq.abc.PGconn) -> bool:
        """Wait for a message, and take it and those that follow soon. Returns whether one requests
        a reply now."""
        payload = self._next(pgconn, waits=True)
        if payload is not None:
            self._closing.wait(GATHER_SECONDS)
        is_asked, count = False, 0
        while payload is not None:
            is_asked |= self._take(payload)
            count += 1
            payload = self._next(pgconn, waits=False) if count < MESSAGES_A_TURN else None
        return is_asked

    def _next(self, pgconn: pq.abc.PGconn, *, waits: bool) -> memoryview | None:
        """None: no message has come."""
        try:
            if waits:
                payload = receive_copy_data(pgconn, WAIT_SECONDS)
            else:
                payload = arrived_copy_data(pgconn)
        except Silent:
            return None
        if payload is None:
            next_result(pgconn)
            raise Unreachable("the primary ended the logical stream")
        return payload

    def _take(self, payload: memoryview) -> bool:
        """Returns whether the message requests a reply now."""
        message = parse_server_message(payload)
        if isinstance(message, Keepalive):
            # the server has sent everything below this position
            self._acknowledged_lsn = max(self._acknowledged_lsn, message.end_lsn)
            return message.reply_requested
        logical = parse_logical_message(bytes(message.data))
        if logical is not None and not isinstance(logical, BeginPrepare):
            if Gid.is_ours(logical.gid):
                self.use()
            self._told(self.database, logical)
            self._acknowledged_lsn = max(self._acknowledged_lsn, message.start_lsn)
        return False

    def _acknowledge(self, pgconn: pq.abc.PGconn) -> None:
        lsn = self._acknowledged_lsn
        status = StandbyStatus(lsn, lsn, lsn, postgres_time_us(time.time_ns()))
        with converting_errors("the logical stream broke"):
            pgconn.put_copy_data(status.encode())
            pgconn.flush()
