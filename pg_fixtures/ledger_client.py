"""A client of the ledger: a thread that commits rows and records which were acknowledged.

It never cancels a commit and never retries a row. After an error it reconnects after growing pauses
(BACKOFF), until a row is acknowledged or it gives up.
"""

from __future__ import annotations

import hashlib
import os
import random
import socket
import threading
import time
from array import array
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

import psycopg
from psycopg import sql

BACKOFF_FIRST = 0.02  # seconds
BACKOFF_MAX = 0.5
CONNECT_TIMEOUT = 3  # whole seconds, for libpq; a silent network must not delay stop()


@dataclass(slots=True)
class LedgerOptions:
    """The options of a ledger. `may_insert` is set unless paused, and when stopping. Each client
    waits about `pause_seconds` between two rows."""

    dsn: str
    table: str
    seed: int
    payload_bytes: int
    give_up_seconds: float
    pause_seconds: float
    may_insert: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class ClientRecord:
    """The record of one client. Only that client writes it. It only grows, so others may read it.

    Every seq below `next_seq` is acknowledged, unknown, or in flight.
    """

    client: int
    next_seq: int = 0
    acknowledged: array[int] = field(default_factory=lambda: array("q"))
    acknowledged_at: array[float] = field(default_factory=lambda: array("d"))  # time.monotonic()
    latencies: array[float] = field(default_factory=lambda: array("d"))  # seconds
    unknown: array[int] = field(default_factory=lambda: array("q"))
    in_flight_since: float | None = None  # time.monotonic(); None: no insert is running
    errors: int = 0
    last_error: str = ""
    given_up: bool = False

    def longest_wait(self, since: float) -> float:
        """The longest wait of commits that were acknowledged after `since` or are in flight, in
        seconds. Only the part of a wait after `since` counts."""
        waiting_since, waits = self.in_flight_since, [0.0]
        if waiting_since is not None:
            waits.append(time.monotonic() - max(waiting_since, since))
        times = self.acknowledged_at[:]
        begin = bisect_right(times, since)
        for at, latency in zip(times[begin:], self.latencies[begin:], strict=False):
            waits.append(min(latency, at - since))
        return max(waits)


def payload(options: LedgerOptions, client: int, seq: int) -> bytes:
    """The row's payload. It cannot be compressed, and can be computed again from its numbers."""
    name = f"{options.seed}/{client}/{seq}".encode()
    return hashlib.shake_128(name).digest(options.payload_bytes)


class Client(threading.Thread):
    """The thread. Start it once; interrupt() may be called by another thread."""

    def __init__(self, options: LedgerOptions, record: ClientRecord) -> None:
        super().__init__(name=f"ledger client {record.client}", daemon=True)
        self._options = options
        self._record = record
        self._random = random.Random(f"{options.seed}/{record.client}")
        self._connection: psycopg.Connection[Any] | None = None
        self._connection_lock = threading.Lock()  # held to open, close and interrupt it
        self._failing_since: float | None = None
        self._backoff = BACKOFF_FIRST
        self._warned = False
        table = sql.Identifier(options.table)
        self._insert_row = sql.SQL(
            "INSERT INTO {} (client, seq, payload) VALUES (%s, %s, %b)"
        ).format(table)
        # Does not wait for a standby: all later acknowledgements are later in the WAL.
        self._create_table = sql.SQL(
            """
            SET synchronous_commit = local;
            BEGIN;
            SELECT pg_advisory_xact_lock(hashtext({name}));
            CREATE TABLE IF NOT EXISTS {table} (
                client int, seq bigint, payload bytea NOT NULL, PRIMARY KEY (client, seq)
            );
            COMMIT;
            RESET synchronous_commit;
            """
        ).format(name=sql.Literal(options.table), table=table)

    def run(self) -> None:
        while not self._options.stopping.is_set() and not self._record.given_up:
            try:
                connection = self._connect()
                while self._options.may_insert.wait() and not self._options.stopping.is_set():
                    self._insert(connection)
                    self._pause()
            except psycopg.Error as error:
                self._back_off(error)
            finally:
                self._disconnect()

    def _pause(self) -> None:
        """Random, so that the clients do not commit in step."""
        pause = self._options.pause_seconds * self._random.uniform(0.5, 1.5)
        if pause:
            self._options.stopping.wait(pause)

    def interrupt(self) -> None:
        """Breaks the connection, which ends any wait on it. Does not ask the server to cancel."""
        with self._connection_lock:
            if self._connection is None or self._connection.closed:
                return
            try:
                with socket.socket(fileno=os.dup(self._connection.fileno())) as same_connection:
                    same_connection.shutdown(socket.SHUT_RDWR)
            except (OSError, psycopg.Error):
                pass  # it is broken already

    def _connect(self) -> psycopg.Connection[Any]:
        connection = psycopg.connect(
            self._options.dsn,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT,
            application_name=self._options.table,
        )
        with self._connection_lock:
            self._connection = connection
        connection.add_notice_handler(self._on_notice)
        connection.execute(self._create_table)
        return connection

    def _disconnect(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _insert(self, connection: psycopg.Connection[Any]) -> None:
        record = self._record
        seq = record.next_seq
        row = (record.client, seq, payload(self._options, record.client, seq))
        started_at = record.in_flight_since = time.monotonic()
        record.next_seq += 1
        self._warned = False
        try:
            connection.execute(self._insert_row, row)
        except psycopg.Error:
            record.unknown.append(seq)
            raise
        else:
            self._record_outcome(seq, started_at)
        finally:
            record.in_flight_since = None

    def _record_outcome(self, seq: int, started_at: float) -> None:
        record = self._record
        if self._warned:
            record.unknown.append(seq)
            return
        now = time.monotonic()
        record.latencies.append(now - started_at)
        record.acknowledged_at.append(now)
        record.acknowledged.append(seq)
        self._failing_since = None
        self._backoff = BACKOFF_FIRST

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Postgres: "canceling wait for synchronous replication": the commit is only local."""
        if notice.severity_nonlocalized == "WARNING":
            self._warned = True

    def _back_off(self, error: psycopg.Error) -> None:
        now = time.monotonic()
        self._record.errors += 1
        self._record.last_error = str(error).strip()
        self._failing_since = self._failing_since or now
        self._record.given_up = now - self._failing_since > self._options.give_up_seconds
        # Random pauses: all clients at once would overload a server that has just started.
        self._options.stopping.wait(self._backoff * self._random.uniform(0.5, 1.0))
        self._backoff = min(2 * self._backoff, BACKOFF_MAX)
