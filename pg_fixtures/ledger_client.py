"""One client of the ledger: a thread that commits rows and writes down what was acknowledged.

It never cancels a commit and never tries a row again. After an error it reconnects, waiting longer
each time (BACKOFF), until something is acknowledged again or its patience ends.
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
CONNECT_TIMEOUT = 3  # whole seconds, as libpq wants it; a silent network must not hold up stop()


@dataclass(slots=True)
class Orders:
    """What a ledger tells its clients. `may_insert` is set unless paused, and when stopping."""

    dsn: str
    table: str
    seed: int
    payload_bytes: int
    patience: float
    may_insert: threading.Event = field(default_factory=threading.Event)
    stopping: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class Account:
    """One client's page of the ledger. Only its client writes; it only grows, so others may read.

    Every seq below `next_seq` is acknowledged, unknown, or the one in flight.
    """

    client: int
    next_seq: int = 0
    acknowledged: array[int] = field(default_factory=lambda: array("q"))
    acknowledged_at: array[float] = field(default_factory=lambda: array("d"))  # time.monotonic()
    latencies: array[float] = field(default_factory=lambda: array("d"))  # seconds
    unknown: array[int] = field(default_factory=lambda: array("q"))
    in_flight_since: float | None = None  # time.monotonic(); None: nothing is in flight
    errors: int = 0
    last_error: str = ""
    given_up: bool = False

    def longest_wait(self, since: float) -> float:
        """Seconds, of the commits that were acknowledged after `since`, or are in flight; of each
        what was later than `since` counts."""
        waiting_since, waits = self.in_flight_since, [0.0]
        if waiting_since is not None:
            waits.append(time.monotonic() - max(waiting_since, since))
        times = self.acknowledged_at[:]
        begin = bisect_right(times, since)
        for at, latency in zip(times[begin:], self.latencies[begin:], strict=False):
            waits.append(min(latency, at - since))
        return max(waits)


def payload(orders: Orders, client: int, seq: int) -> bytes:
    """The row's payload: random to any compressor, yet known again without being remembered."""
    name = f"{orders.seed}/{client}/{seq}".encode()
    return hashlib.shake_128(name).digest(orders.payload_bytes)


class Client(threading.Thread):
    """The thread. Start it once; interrupt() it from another thread."""

    def __init__(self, orders: Orders, account: Account) -> None:
        super().__init__(name=f"ledger client {account.client}", daemon=True)
        self._orders = orders
        self._account = account
        self._random = random.Random(f"{orders.seed}/{account.client}")
        self._connection: psycopg.Connection[Any] | None = None
        self._connection_lock = threading.Lock()  # held to open, to close and to interrupt it
        self._failing_since: float | None = None
        self._backoff = BACKOFF_FIRST
        self._warned = False
        table = sql.Identifier(orders.table)
        self._insert_row = sql.SQL(
            "INSERT INTO {} (client, seq, payload) VALUES (%s, %s, %b)"
        ).format(table)
        # Without waiting for a standby: whatever is acknowledged later comes later in the WAL.
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
        ).format(name=sql.Literal(orders.table), table=table)

    def run(self) -> None:
        while not self._orders.stopping.is_set() and not self._account.given_up:
            try:
                connection = self._connect()
                while self._orders.may_insert.wait() and not self._orders.stopping.is_set():
                    self._insert(connection)
            except psycopg.Error as error:
                self._back_off(error)
            finally:
                self._hang_up()

    def interrupt(self) -> None:
        """Break the connection, and so end any wait on it. The server is not asked to cancel."""
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
            self._orders.dsn,
            autocommit=True,
            connect_timeout=CONNECT_TIMEOUT,
            application_name=self._orders.table,
        )
        with self._connection_lock:
            self._connection = connection
        connection.add_notice_handler(self._on_notice)
        connection.execute(self._create_table)
        return connection

    def _hang_up(self) -> None:
        with self._connection_lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _insert(self, connection: psycopg.Connection[Any]) -> None:
        account = self._account
        seq = account.next_seq
        row = (account.client, seq, payload(self._orders, account.client, seq))
        started_at = account.in_flight_since = time.monotonic()
        account.next_seq += 1
        self._warned = False
        try:
            connection.execute(self._insert_row, row)
        except psycopg.Error:
            account.unknown.append(seq)
            raise
        else:
            self._book(seq, started_at)
        finally:
            account.in_flight_since = None

    def _book(self, seq: int, started_at: float) -> None:
        account = self._account
        if self._warned:
            account.unknown.append(seq)
            return
        now = time.monotonic()
        account.latencies.append(now - started_at)
        account.acknowledged_at.append(now)
        account.acknowledged.append(seq)
        self._failing_since = None
        self._backoff = BACKOFF_FIRST

    def _on_notice(self, notice: psycopg.errors.Diagnostic) -> None:
        """Postgres: "canceling wait for synchronous replication": committed here, and only here."""
        if notice.severity_nonlocalized == "WARNING":
            self._warned = True

    def _back_off(self, error: psycopg.Error) -> None:
        now = time.monotonic()
        self._account.errors += 1
        self._account.last_error = str(error).strip()
        self._failing_since = self._failing_since or now
        self._account.given_up = now - self._failing_since > self._orders.patience
        # Not all at once: a server that has just come back should not meet every client together.
        self._orders.stopping.wait(self._backoff * self._random.uniform(0.5, 1.0))
        self._backoff = min(2 * self._backoff, BACKOFF_MAX)
