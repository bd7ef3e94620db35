"""`Books`: the ledger in volumes, so that a long run needs little disk space and is checked
quickly.

    volume 3   its clients commit
    volume 2   closed; checked again, because its rows must also survive a later fault
    volume 1   checked twice; its table is dropped
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from psycopg import sql

from quorum_wal.pg_fixtures.ledger import Ledger

CLIENTS = 4
PAYLOAD_BYTES = 500
GIVE_UP_SECONDS = 3600.0  # seconds; SilenceWatch decides when it takes too long
PROGRESS_ROWS = 20
PAUSE_SECONDS = 0.02  # between two rows of a client: the faults need the processors too


@dataclass(slots=True)
class Reckoned:
    """Sums over all checks."""

    lost: int = 0
    wrong: int = 0  # damaged, or never inserted
    twice: int = 0
    reckonings: int = 0

    @property
    def ok(self) -> bool:
        return not (self.lost or self.wrong or self.twice)


class Books:
    """A context manager: the clients of the open volume commit inside the block."""

    def __init__(self, dsn: str, seed: int, clients: int = CLIENTS) -> None:
        self._dsn = dsn
        self._clients = clients
        self._seed = seed
        self._volumes = 0
        self._acknowledged = 0  # in volumes that were dropped
        self._unknown = 0
        self._closed: list[tuple[str, Ledger]] = []
        self.reckoned = Reckoned()
        self._open_volume()

    def __enter__(self) -> Books:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.stop()

    def _open_volume(self) -> None:
        self._volumes += 1
        self._table = f"ledger_{self._volumes}"
        self._open = Ledger(
            self._dsn,
            clients=self._clients,
            seed=self._seed + self._volumes,
            payload_bytes=PAYLOAD_BYTES,
            table=self._table,
            give_up_seconds=GIVE_UP_SECONDS,
            pause_seconds=PAUSE_SECONDS,
        )
        self._open.start()

    @property
    def acknowledged(self) -> int:
        return self._acknowledged + sum(ledger.acknowledged for _, ledger in self._kept)

    @property
    def unknown(self) -> int:
        """Rows whose commit failed: they may exist or not."""
        return self._unknown + sum(ledger.unknown for _, ledger in self._kept)

    @property
    def _kept(self) -> list[tuple[str, Ledger]]:
        return [*self._closed[:], (self._table, self._open)]

    def redirect(self, dsn: str) -> None:
        """Let the clients use another primary."""
        self._dsn = dsn
        self._open.redirect(dsn)

    def wait_for_progress(self, timeout: float) -> None:
        """Raises DeadlineExceeded."""
        self._open.wait_for_progress(PROGRESS_ROWS, timeout)

    def longest_wait(self, since: float) -> float:
        """Seconds that a commit of the open volume has waited after `since`, a time.monotonic()."""
        return self._open.longest_wait(since)

    def rest(self, timeout: float) -> None:
        """Pause all commits. Raises DeadlineExceeded."""
        self._open.pause()
        self._open.wait_idle(timeout)

    def resume(self) -> None:
        """Resume them."""
        self._open.resume()

    def reckon(self) -> str:
        """Compare all remaining volumes with the tables; returns the result."""
        lines = []
        for table, ledger in self._kept:
            report = ledger.verify(self._dsn)
            self.reckoned.lost += len(report.lost)
            self.reckoned.wrong += len(report.damaged) + len(report.foreign)
            self.reckoned.twice += self._rows_twice(table)
            lines.append(f"{table}: {report}")
        self.reckoned.reckonings += 1
        return "; ".join(lines)

    def turn_page(self) -> None:
        """Open another volume, close this one, drop the oldest."""
        closing = (self._table, self._open)
        self._open_volume()
        closing[1].stop()
        self._closed.append(closing)
        if len(self._closed) > 1:
            table, ledger = self._closed.pop(0)
            self._acknowledged += ledger.acknowledged
            self._unknown += ledger.unknown
            self._drop(table)

    def _rows_twice(self, table: str) -> int:
        """Read from the table itself, without an index."""
        statement = sql.SQL(
            "SELECT count(*) FROM (SELECT FROM {} GROUP BY client, seq HAVING count(*) > 1) AS t"
        ).format(sql.Identifier(table))
        options = "-c enable_indexscan=off -c enable_indexonlyscan=off -c enable_bitmapscan=off"
        with psycopg.connect(self._dsn, options=options) as connection:
            (twice,) = connection.execute(statement).fetchone() or (0,)
            return int(twice)

    def _drop(self, table: str) -> None:
        options = "-c synchronous_commit=local"
        with psycopg.connect(self._dsn, options=options, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))
