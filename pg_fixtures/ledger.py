"""The ledger: clients that commit rows and record acknowledgements, and a check of the table.

Each client inserts rows `(client, seq, payload)`, one for each transaction, and records every row
whose COMMIT returned. The law under test: an acknowledged row is never lost.

- After an error during an insert, the outcome of that row is unknown.
- A commit that returned with a warning (Postgres stopped waiting for its standby) is not
  acknowledged; its outcome is also unknown.
- A commit that waits for a standby is never cancelled; stop() only breaks the connection.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

import psycopg
from psycopg import sql

from quorum_wal.pg_fixtures.errors import FixtureError
from quorum_wal.pg_fixtures.ledger_client import Client, ClientRecord, LedgerOptions, payload
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import DeadlineExceeded

CLIENTS = 8
PAYLOAD_BYTES = 100
# A commit costs two milliseconds of a processor, in all processes. Eight clients without a pause
# would take both processors of a small machine all the time.
PAUSE_SECONDS = 0.04
GIVE_UP_SECONDS = 120.0  # of errors without an acknowledgement, after which a client gives up
STOP_GRACE = 1.0
STOP_TIMEOUT = 30.0
FETCH_ROWS = 10_000

Row = tuple[int, int]  # client, seq


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """The result of the check."""

    acknowledged: int
    found: int  # of the acknowledged rows
    lost: list[Row]  # acknowledged, but not in the table
    damaged: list[Row]  # in the table with another payload
    foreign: list[Row]  # in the table, but never inserted by this ledger
    unknown_found: int  # of the rows with an unknown outcome
    unknown_absent: int

    @property
    def ok(self) -> bool:
        """No acknowledged row is lost, and the table has only rows that were inserted."""
        return not (self.lost or self.damaged or self.foreign)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged: {self.found} found, {len(self.lost)} lost, "
            f"{len(self.damaged)} damaged, {len(self.foreign)} foreign; "
            f"outcome unknown: {self.unknown_found} found, {self.unknown_absent} absent"
        )


class Ledger:
    """A context manager: the clients commit inside the block and are stopped at its end.

    Equal seeds insert equal rows. Each ledger needs a `table` of its own on a server. A client
    waits about `pause_seconds` between two rows: 0 for as many commits as the server can take.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clients: int = CLIENTS,
        seed: int = 0,
        payload_bytes: int = PAYLOAD_BYTES,
        table: str = "ledger",
        give_up_seconds: float = GIVE_UP_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._options = LedgerOptions(
            dsn, table, seed, payload_bytes, give_up_seconds, pause_seconds
        )
        self._records = [ClientRecord(client) for client in range(clients)]
        self._clients: list[Client] = []
        self._started_at = time.monotonic()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    # ---- control

    def start(self) -> None:
        """Starts clients that connect, create the table and commit. Also allowed after stop()."""
        if self._clients:
            raise FixtureError("the ledger is running already")
        self._started_at = time.monotonic()
        self._options.stopping.clear()
        self._options.may_insert.set()
        for record in self._records:
            record.given_up = False
        self._clients = [Client(self._options, record) for record in self._records]
        for client in self._clients:
            client.start()

    def pause(self) -> None:
        """Begins no more inserts. Running ones continue: see in_flight and wait_idle()."""
        self._options.may_insert.clear()

    def resume(self) -> None:
        """Ends pause()."""
        self._options.may_insert.set()

    def redirect(self, dsn: str) -> None:
        """Continues on another server after a failover. Breaks the old connections."""
        self._options.dsn = dsn
        self._interrupt()

    def stop(self, grace: float = STOP_GRACE) -> None:
        """Stops the clients: within `grace` seconds regularly, then by breaking connections.

        May be called when stopped. Raises DeadlineExceeded.
        """
        self._options.stopping.set()
        self._options.may_insert.set()
        deadline = time.monotonic() + grace
        for client in self._clients:
            client.join(max(0.0, deadline - time.monotonic()))
        wait_until(self._ended, STOP_TIMEOUT, "the clients of the ledger to end")
        self._clients = []

    def _ended(self) -> bool:
        self._interrupt()  # repeatedly: a client may have been connecting the last time
        return not any(client.is_alive() for client in self._clients)

    def _interrupt(self) -> None:
        for client in self._clients:
            client.interrupt()

    # ---- what has happened so far

    @property
    def acknowledged(self) -> int:
        """The number of rows whose commit returned without a warning."""
        return sum(len(record.acknowledged) for record in self._records)

    @property
    def unknown(self) -> int:
        """The number of rows with an unknown outcome: the commit failed or returned a warning."""
        return sum(len(record.unknown) for record in self._records)

    @property
    def in_flight(self) -> int:
        """The number of rows that are being committed now, at most one per client."""
        return sum(record.in_flight_since is not None for record in self._records)

    @property
    def errors(self) -> int:
        """The number of failed attempts to connect or to insert."""
        return sum(record.errors for record in self._records)

    @property
    def last_ack_age(self) -> float:
        """Seconds since the last acknowledgement, or since start() if there was none."""
        last = max((r.acknowledged_at[-1] for r in self._records if r.acknowledged_at), default=0.0)
        return time.monotonic() - max(last, self._started_at)

    def latencies(self) -> list[float]:
        """The seconds from insert to acknowledgement of all acknowledged rows, in no order."""
        return [latency for record in self._records for latency in record.latencies[:]]

    def latency_percentile(self, percent: float) -> float:
        """The latency that `percent` of the acknowledged rows did not exceed; nan without rows."""
        ordered = sorted(self.latencies())
        if not ordered:
            return math.nan
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    def longest_wait(self, since: float) -> float:
        """The longest wait of a commit in seconds after `since`, a time.monotonic(), whether it was
        acknowledged or is still waiting."""
        return max(record.longest_wait(since) for record in self._records)

    def longest_silence(self) -> float:
        """The longest time in seconds without any acknowledgement."""
        times = sorted(at for record in self._records for at in record.acknowledged_at[:])
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def wait_for_progress(self, rows: int, timeout: float) -> None:
        """Returns when `rows` more rows have been acknowledged.

        Raises DeadlineExceeded; FixtureError if every client has given up.
        """
        before = self.acknowledged

        def progressed() -> bool:
            enough = self.acknowledged - before >= rows
            if not enough and all(record.given_up for record in self._records):
                raise FixtureError(f"every client has given up{self._last_errors()}")
            return enough

        try:
            wait_until(progressed, timeout, f"{rows} more commits")
        except DeadlineExceeded as error:
            came = self.acknowledged - before
            raise DeadlineExceeded(f"{error}; {came} came{self._last_errors()}") from None

    def wait_idle(self, timeout: float) -> None:
        """After pause(): returns when no insert is running. Raises DeadlineExceeded."""
        wait_until(lambda: self.in_flight == 0, timeout, "the ledger to be idle")

    def _last_errors(self) -> str:
        errors = Counter(record.last_error for record in self._records if record.last_error)
        return "".join(f"\n{count} clients: {error}" for error, count in errors.items())

    # ---- the check

    def verify(self, dsn: str | None = None) -> LedgerReport:
        """Compares the ledger with the table on `dsn`, or on the ledger's own server.

        May be called while the clients run: rows whose outcome was not known at the beginning are
        not counted. Raises psycopg.Error.
        """
        acknowledged = {(r.client, seq) for r in self._records for seq in r.acknowledged[:]}
        unknown = {(r.client, seq) for r in self._records for seq in r.unknown[:]}
        hashes = self._read_table(self._options.dsn if dsn is None else dsn)
        present = hashes.keys()
        foreign = {row for row in present if not self._was_inserted(row)}
        damaged = [row for row in present - foreign if hashes[row] != self._hash(row)]
        return LedgerReport(
            acknowledged=len(acknowledged),
            found=len(acknowledged & present),
            lost=sorted(acknowledged - present),
            damaged=sorted(damaged),
            foreign=sorted(foreign),
            unknown_found=len(unknown & present),
            unknown_absent=len(unknown - present),
        )

    def _read_table(self, dsn: str) -> dict[Row, bytes]:
        statement = sql.SQL("SELECT client, seq, sha256(payload) FROM {}").format(
            sql.Identifier(self._options.table)
        )
        with psycopg.connect(dsn) as connection, connection.cursor("ledger") as cursor:
            cursor.itersize = FETCH_ROWS
            try:
                cursor.execute(statement)
            except psycopg.errors.UndefinedTable:
                return {}  # every acknowledged row is lost then
            return {(client, seq): sha256 for client, seq, sha256 in cursor}

    def _was_inserted(self, row: Row) -> bool:
        client, seq = row
        return 0 <= client < len(self._records) and 0 <= seq < self._records[client].next_seq

    def _hash(self, row: Row) -> bytes:
        return hashlib.sha256(payload(self._options, *row)).digest()
