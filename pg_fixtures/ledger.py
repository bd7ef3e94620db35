"""The ledger: clients that commit rows and remember what was acknowledged; then the reckoning.

Each client inserts rows `(client, seq, payload)`, one transaction each, and writes down every one
whose COMMIT returned. The law under test: an acknowledged row is never lost.

- An error during an insert leaves the outcome of that one row unknown.
- A commit that returned with a warning (Postgres stopped waiting for its standby) is not
  acknowledged; its outcome, too, is unknown.
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

from pg_fixtures.errors import FixtureError
from pg_fixtures.ledger_client import Account, Client, Orders, payload
from pg_fixtures.waiting import wait_until
from pg_server.errors import DeadlineExceeded

CLIENTS = 8
PAYLOAD_BYTES = 100
PATIENCE = 120.0  # seconds of errors without one acknowledgement, after which a client gives up
STOP_GRACE = 1.0
STOP_TIMEOUT = 30.0
FETCH_ROWS = 10_000

Row = tuple[int, int]  # client, seq


@dataclass(frozen=True, slots=True)
class LedgerReport:
    """What became of the rows."""

    acknowledged: int
    found: int  # of the acknowledged
    lost: list[Row]  # acknowledged, and not there
    damaged: list[Row]  # there, with another payload
    foreign: list[Row]  # there, and never inserted by this ledger
    unknown_found: int  # of the rows with an unknown outcome
    unknown_absent: int

    @property
    def ok(self) -> bool:
        """Nothing acknowledged is lost, and all that is there is what was inserted."""
        return not (self.lost or self.damaged or self.foreign)

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged: {self.found} found, {len(self.lost)} lost, "
            f"{len(self.damaged)} damaged, {len(self.foreign)} foreign; "
            f"outcome unknown: {self.unknown_found} found, {self.unknown_absent} absent"
        )


class Ledger:
    """A context manager: the clients commit inside the block and are stopped at its end.

    Equal seeds insert equal rows. Each ledger needs a `table` of its own on a server.
    """

    def __init__(
        self,
        dsn: str,
        *,
        clients: int = CLIENTS,
        seed: int = 0,
        payload_bytes: int = PAYLOAD_BYTES,
        table: str = "ledger",
        patience: float = PATIENCE,
    ) -> None:
        self._orders = Orders(dsn, table, seed, payload_bytes, patience)
        self._accounts = [Account(client) for client in range(clients)]
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

    # ---- orders

    def start(self) -> None:
        """Let the clients connect, make the table and commit. Does not wait. Legal after stop()."""
        if self._clients:
            raise FixtureError("the ledger is running already")
        self._started_at = time.monotonic()
        self._orders.stopping.clear()
        self._orders.may_insert.set()
        for account in self._accounts:
            account.given_up = False
        self._clients = [Client(self._orders, account) for account in self._accounts]
        for client in self._clients:
            client.start()

    def pause(self) -> None:
        """Begin no more inserts. Those in flight go on: see in_flight and wait_idle()."""
        self._orders.may_insert.clear()

    def resume(self) -> None:
        """The end of pause()."""
        self._orders.may_insert.set()

    def redirect(self, dsn: str) -> None:
        """Go on with another server, after a failover. Breaks the connections to the old one."""
        self._orders.dsn = dsn
        self._interrupt()

    def stop(self, grace: float = STOP_GRACE) -> None:
        """End the clients: within `grace` seconds in good order, then by breaking connections.

        Legal when stopped. Raises DeadlineExceeded.
        """
        self._orders.stopping.set()
        self._orders.may_insert.set()
        deadline = time.monotonic() + grace
        for client in self._clients:
            client.join(max(0.0, deadline - time.monotonic()))
        wait_until(self._ended, STOP_TIMEOUT, "the clients of the ledger to end")
        self._clients = []

    def _ended(self) -> bool:
        self._interrupt()  # again and again: a client may have been connecting the last time
        return not any(client.is_alive() for client in self._clients)

    def _interrupt(self) -> None:
        for client in self._clients:
            client.interrupt()

    # ---- what has happened so far

    @property
    def acknowledged(self) -> int:
        """Rows whose commit has returned in good order."""
        return sum(len(account.acknowledged) for account in self._accounts)

    @property
    def unknown(self) -> int:
        """Rows whose commit failed or was warned about: they may be there, or not."""
        return sum(len(account.unknown) for account in self._accounts)

    @property
    def in_flight(self) -> int:
        """Rows being committed right now, at most one per client."""
        return sum(account.in_flight_since is not None for account in self._accounts)

    @property
    def errors(self) -> int:
        """Failed attempts to connect or to insert."""
        return sum(account.errors for account in self._accounts)

    @property
    def last_ack_age(self) -> float:
        """Seconds since the last acknowledgement, or since start() when there was none."""
        last = max(
            (a.acknowledged_at[-1] for a in self._accounts if a.acknowledged_at), default=0.0
        )
        return time.monotonic() - max(last, self._started_at)

    def latencies(self) -> list[float]:
        """Seconds from insert to acknowledgement, of every acknowledged row, in no order."""
        return [latency for account in self._accounts for latency in account.latencies[:]]

    def latency_percentile(self, percent: float) -> float:
        """The latency that `percent` of the acknowledged rows did not exceed; nan without rows."""
        ordered = sorted(self.latencies())
        if not ordered:
            return math.nan
        return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]

    def longest_wait(self, since: float) -> float:
        """Seconds that a commit has waited after `since`, a time.monotonic(); whether it is
        acknowledged, or waits still."""
        return max(account.longest_wait(since) for account in self._accounts)

    def longest_silence(self) -> float:
        """The longest time, in seconds, in which no client at all was acknowledged."""
        times = sorted(at for account in self._accounts for at in account.acknowledged_at[:])
        return max((later - earlier for earlier, later in pairwise(times)), default=0.0)

    def wait_for_progress(self, rows: int, timeout: float) -> None:
        """Return when `rows` more have been acknowledged.

        Raises DeadlineExceeded; FixtureError when every client has given up.
        """
        before = self.acknowledged

        def progressed() -> bool:
            enough = self.acknowledged - before >= rows
            if not enough and all(account.given_up for account in self._accounts):
                raise FixtureError(f"every client has given up{self._last_errors()}")
            return enough

        try:
            wait_until(progressed, timeout, f"{rows} more commits")
        except DeadlineExceeded as error:
            came = self.acknowledged - before
            raise DeadlineExceeded(f"{error}; {came} came{self._last_errors()}") from None

    def wait_idle(self, timeout: float) -> None:
        """After pause(): return when nothing is in flight. Raises DeadlineExceeded."""
        wait_until(lambda: self.in_flight == 0, timeout, "the ledger to be idle")

    def _last_errors(self) -> str:
        errors = Counter(account.last_error for account in self._accounts if account.last_error)
        return "".join(f"\n{count} clients: {error}" for error, count in errors.items())

    # ---- the reckoning

    def verify(self, dsn: str | None = None) -> LedgerReport:
        """Compare the ledger with the table on `dsn`, or on the ledger's own server.

        May be called while the clients run: rows of which nothing was known when it began count
        neither way. Raises psycopg.Error.
        """
        acknowledged = {(a.client, seq) for a in self._accounts for seq in a.acknowledged[:]}
        unknown = {(a.client, seq) for a in self._accounts for seq in a.unknown[:]}
        hashes = self._read_table(self._orders.dsn if dsn is None else dsn)
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
            sql.Identifier(self._orders.table)
        )
        with psycopg.connect(dsn) as connection, connection.cursor("ledger") as cursor:
            cursor.itersize = FETCH_ROWS
            try:
                cursor.execute(statement)
            except psycopg.errors.UndefinedTable:
                return {}  # then every acknowledged row is lost
            return {(client, seq): sha256 for client, seq, sha256 in cursor}

    def _was_inserted(self, row: Row) -> bool:
        client, seq = row
        return 0 <= client < len(self._accounts) and 0 <= seq < self._accounts[client].next_seq

    def _hash(self, row: Row) -> bytes:
        return hashlib.sha256(payload(self._orders, *row)).digest()
