"""Who looks on while transactions of qsync run: readers that write down every row they see, one who
asks for outcomes again and again, and one who commits plainly beside them.

Each goes to the server that takes writes, as libpq finds it, and on when that is lost.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg

from qsync.client import Qsync
from qsync.errors import OutcomeUnknown, QsyncError
from qsync.gid import Gid
from qsync.outcome import Committed, Pending, RolledBack

from .qsync_book import COMMITTED, ROLLED_BACK, UNKNOWN, QsyncBook
from .qsync_client import ACCOUNTS, BALANCE

LOCAL = "-c synchronous_commit=local -c statement_timeout=20000"
RECENT_ROWS = 100
COMPARE_SECONDS = 3.0
PAUSE_SECONDS = 0.02
RETRY_SECONDS = 0.05
#: A plain commit on a primary that nothing is the matter with.
PLAIN_SECONDS_MAX = 5.0

_TLI = "SELECT ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int"
_RECENT = "SELECT client, seq FROM moves ORDER BY inserted_at DESC LIMIT %s"
_ALL = "SELECT client, seq FROM moves"
# In one snapshot: what each account has, against what its moves say.
_WRONG_ACCOUNTS = """
SELECT count(*) FROM accounts LEFT JOIN (SELECT id, sum(amount) AS moved FROM (
    SELECT source AS id, -amount AS amount FROM moves
    UNION ALL SELECT target, amount FROM moves) AS each GROUP BY id) AS moved USING (id)
WHERE balance <> %s + coalesce(moved, 0)
"""
_SUM = "SELECT coalesce(sum(balance), 0) FROM accounts"


class Watcher(threading.Thread):
    """`watch` is called with a connection until it raises; then with a new one."""

    def __init__(self, name: str, dsn: str) -> None:
        super().__init__(name=name, daemon=True)
        self._dsn = dsn
        self._ending = threading.Event()

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        raise NotImplementedError

    def run(self) -> None:
        while not self._ending.wait(RETRY_SECONDS):
            try:
                with psycopg.connect(self._dsn, autocommit=True, options=LOCAL) as connection:
                    while not self._ending.wait(PAUSE_SECONDS):
                        self.watch(connection)
            except psycopg.Error:
                continue  # the server is lost, or none takes writes

    def end(self) -> None:
        self._ending.set()
        self.join()


class NewestTimeline:
    """What an older one shows now is stale, and no fault. Who fails over says so before."""

    def __init__(self) -> None:
        self._tli = 0
        self._lock = threading.Lock()

    def met(self, tli: int) -> bool:
        """Whether it is the newest so far."""
        with self._lock:
            self._tli = max(self._tli, tli)
            return tli == self._tli


class Reader(Watcher):
    """Writes down the newest rows, and compares all of them on each new connection and every few
    seconds."""

    def __init__(self, number: int, dsn: str, book: QsyncBook, newest: NewestTimeline) -> None:
        super().__init__(f"reader {number}", dsn)
        self._book = book
        self._newest = newest
        self._connection: psycopg.Connection[Any] | None = None
        self._compared_at = 0.0
        self.comparisons = 0

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        is_new = connection is not self._connection
        if is_new or time.monotonic() - self._compared_at > COMPARE_SECONDS:
            self.compare(connection)
            self._connection, self._compared_at = connection, time.monotonic()
        self._book.saw(connection.execute(_RECENT, (RECENT_ROWS,)).fetchall())

    def compare(self, connection: psycopg.Connection[Any]) -> None:
        """Rows and money, of one snapshot."""
        mark = self._book.mark()
        with connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            ((tli,),) = connection.execute(_TLI).fetchall()
            present = set(connection.execute(_ALL).fetchall())
            ((wrong,),) = connection.execute(_WRONG_ACCOUNTS, (BALANCE,)).fetchall()
            ((total,),) = connection.execute(_SUM).fetchall()
        where = f"timeline {tli}, port {connection.info.port}"
        if not self._newest.met(tli):
            self._book.saw(present)
            return
        self._book.compare(mark, present, where)
        if wrong or int(total) != ACCOUNTS * BALANCE:
            self._book.violate("MONEY", f"{wrong} accounts, {total} in all, {where}")
        self.comparisons += 1


class Inquirer(threading.Thread):
    """Asks what became of transactions, undecided ones and others: never two answers."""

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
                self.ask(self._rng.choice(names[-500:]))

    def ask(self, name: tuple[int, int]) -> str:
        """What is answered; "" when it is pending, or nobody is there to tell."""
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


@dataclass(slots=True)
class Delay:
    """The longest that a plain commit took."""

    seconds: float = 0.0
    during: str = ""


class PlainClient(Watcher):
    """Commits rows of its own; `what_is_wrong` names what may hinder it, "" for nothing."""

    def __init__(self, dsn: str, book: QsyncBook, what_is_wrong: Callable[[], str]) -> None:
        super().__init__("plain client", dsn)
        self._book = book
        self._what_is_wrong = what_is_wrong
        self.commits = 0
        self.longest = Delay()

    def watch(self, connection: psycopg.Connection[Any]) -> None:
        before, began = self._what_is_wrong(), time.monotonic()
        connection.execute("INSERT INTO plain DEFAULT VALUES")
        seconds = time.monotonic() - began
        wrong = before or self._what_is_wrong()
        self.commits += 1
        if wrong:
            return
        if seconds > self.longest.seconds:
            self.longest = Delay(seconds)
        if seconds > PLAIN_SECONDS_MAX:
            self._book.violate("PLAIN_DELAYED", f"a plain commit took {seconds:.1f} s")
