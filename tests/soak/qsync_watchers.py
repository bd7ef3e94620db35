"""Watchers of the transactions of qsync: readers that record every row that they see, and one that
asks for outcomes repeatedly.

Each connects to the server of its kind, as libpq finds it, and again if that is lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from typing import Any, ClassVar

import psycopg

from quorum_wal.qsync.client import Qsync
from quorum_wal.qsync.errors import OutcomeUnknown, QsyncError
from quorum_wal.qsync.gid import Gid
from quorum_wal.qsync.outcome import Committed, Pending, RolledBack

from .qsync_book import COMMITTED, ROLLED_BACK, UNKNOWN, Name, QsyncBook
from .qsync_client import ACCOUNTS, BALANCE

OPTIONS = "-c statement_timeout=20000"
RECENT_ROWS = 100
COMPARE_SECONDS = 3.0
#: Between two looks. Without pauses seven watchers would take a processor, which the faults need.
#: A row is among the newest for longer.
PAUSE_SECONDS = 0.08
RETRY_SECONDS = 0.05
ASKED_OF = 500  # the newest

# Of a standby, or a promoted server that is still closed: 0 and true, because it need not have all
# rows.
_STATE = """
SELECT CASE WHEN pg_is_in_recovery() THEN 0
    ELSE ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int END,
    current_setting('default_transaction_read_only')::bool
"""
_RECENT = "SELECT client, seq FROM moves ORDER BY inserted_at DESC LIMIT %s"
_NAMED = "SELECT client, seq FROM moves JOIN unnest(%s::int[], %s::int[]) AS n (client, seq) \
USING (client, seq)"
_ALL = "SELECT client, seq FROM moves"
# In one snapshot: the content of each account, compared with its moves.
_WRONG_ACCOUNTS = """
SELECT count(*) FROM accounts LEFT JOIN (SELECT id, sum(amount) AS moved FROM (
    SELECT source AS id, -amount AS amount FROM moves
    UNION ALL SELECT target, amount FROM moves) AS each GROUP BY id) AS moved USING (id)
WHERE balance <> %s + coalesce(moved, 0)
"""
_SUM = "SELECT coalesce(sum(balance), 0) FROM accounts"


class Watcher(threading.Thread):
    """`watch` is called with a connection until it raises; then with a new one."""

    pause_seconds: ClassVar[float] = PAUSE_SECONDS

    def __init__(self, name: str, dsn: str, options: str = OPTIONS) -> None:
        super().__init__(name=name, daemon=True)
        self._dsn = dsn
        self._options = options
        self._ending = threading.Event()

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self._ending.wait(RETRY_SECONDS):
            try:
                with psycopg.connect(
                    self._dsn, autocommit=True, options=self._options
                ) as connection:
                    while not self._ending.wait(self.pause_seconds):
                        self.watch(connection)
            except psycopg.Error:
                continue  # the server is lost, or there is none of its kind

    def end(self) -> None:
        """Allowed if ended."""
        self._ending.set()
        self.join()


class NewestTimeline:
    """What an older one shows now is stale, and no error. A failover is announced before."""

    def __init__(self) -> None:
        self._tli = 0
        self._lock = threading.Lock()

    def met(self, tli: int) -> bool:
        """Whether it is the newest so far."""
        with self._lock:
            self._tli = max(self._tli, tli)
            return tli == self._tli


class Reader(Watcher):
    """Records the newest rows, and those that may appear late. On each new connection and every few
    seconds it reads all of them, and compares if the server must have all: the newest primary, when
    it is open. Others may lack rows, but rows that they show must remain."""

    def __init__(self, number: int, dsn: str, book: QsyncBook, newest: NewestTimeline) -> None:
        super().__init__(f"reader {number}", dsn)
        self._book = book
        self._newest = newest
        self._connection: psycopg.Connection[Any] | None = None
        self._looked_at = 0.0
        #: Reads all rows, by the kind of server.
        self.looks: Counter[str] = Counter()

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        is_new = connection is not self._connection
        if is_new or time.monotonic() - self._looked_at > COMPARE_SECONDS:
            self.look_at_all(connection)
            self._connection, self._looked_at = connection, time.monotonic()
        self._book.saw(connection.execute(_RECENT, (RECENT_ROWS,)).fetchall())
        if watched := self._book.watched():
            clients, seqs = (list(each) for each in zip(*watched, strict=True))
            self._book.saw(connection.execute(_NAMED, (clients, seqs)).fetchall())

    def look_at_all(self, connection: psycopg.Connection[Any]) -> None:
        """Rows and money, in one snapshot."""
        mark = self._book.mark()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            ((tli, is_closed),) = connection.execute(_STATE).fetchall()
            present = set(connection.execute(_ALL).fetchall())
            ((wrong,),) = connection.execute(_WRONG_ACCOUNTS, (BALANCE,)).fetchall()
            ((total,),) = connection.execute(_SUM).fetchall()
        where = f"timeline {tli}, port {connection.info.port}"
        kind = self._kind(tli, is_closed=is_closed)
        if kind == "open":
            self._book.compare(mark, present, where)
        else:
            self._book.saw(present)
        if wrong or int(total) != ACCOUNTS * BALANCE:
            self._book.violate("MONEY", f"{wrong} accounts, {total} in all, {where}, {kind}")
        self.looks[kind] += 1

    def _kind(self, tli: int, *, is_closed: bool) -> str:
        if tli == 0:
            return "standby"
        if not self._newest.met(tli):
            return "stale"
        return "closed" if is_closed else "open"


class Inquirer(threading.Thread):
    """Asks for outcomes of transactions, undecided ones and others: never two answers."""

    def __init__(self, coordinator: str, book: QsyncBook, rng: random.Random) -> None:
        super().__init__(name="inquirer", daemon=True)
        self._qsync = Qsync(coordinator)
        self._book = book
        self._rng = rng
        self._ending = threading.Event()
        self.answers = 0

    def run(self) -> None:
        while not self._ending.wait(PAUSE_SECONDS):
            undecided = self._book.undecided()
            names = list(undecided if undecided and self._rng.random() < 0.7 else self._book.gids)
            if names:
                self.ask(self._rng.choice(names[-ASKED_OF:]))

    def ask(self, name: Name) -> str:
        """The answer; "" if it is pending, or no coordinator answers."""
        gid, lsn = self._book.gids[name], self._book.lsns.get(name, 0)
        try:
            outcome = self._qsync.outcome(Pending(Gid.parse(gid), lsn), timeout=1.0)
        except OutcomeUnknown:
            return UNKNOWN
        except QsyncError:
            return ""
        self.answers += 1
        match outcome:
            case Committed():
                answer = COMMITTED
            case RolledBack():
                answer = ROLLED_BACK
            case _:
                return ""
        self._book.told(name, answer)
        return answer

    def end(self) -> None:
        self._ending.set()
        self.join()
        self._qsync.close()
