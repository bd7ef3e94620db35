"""A client of qsync as a process, which can be ordered to die or to wait at a step.

    python -m tests.soak.qsync_client NUMBER SEED DSN COORDINATOR JOURNAL [PLANT]

It moves money and inserts a row, one transaction after the other. It writes a line to its journal
before each PREPARE and after each end: a transaction without a line was not begun, or its end was
not reported. Some are submitted, and awaited some transactions later, on any connection. Its orders
come by stdin (`qsync_orders.py`).

The steps are the requests of the package to its driver: its protocol is a generator of requests, so
a stop is between two of them, or between a sent request and its answer. A *led* transaction is
short, and rolls back at its deadline; its PREPARE is the step `led`, where it loses the quorum.
"""

from __future__ import annotations

import json
import os
import random
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.abc import PQGen
from psycopg_pool import PoolTimeout

from quorum_wal.qsync import asyncio_driver, blocking_driver
from quorum_wal.qsync.coordinator_client import Verdict
from quorum_wal.qsync.errors import (
    CoordinatorError,
    NotCommitted,
    OutcomeUnknown,
    QsyncError,
    TransactionPending,
    TransactionRefused,
)
from quorum_wal.qsync.outcome import Committed, Outcome, Pending, RolledBack
from quorum_wal.qsync.steps import Ask, Request

from .qsync_book import COMMITTED, NEVER, PENDING, ROLLED_BACK
from .qsync_calls import AsyncCalls, BlockingCalls, Calls, Statement
from .qsync_orders import AFTER, BEFORE, DROP, DURING, Orders, say

ACCOUNTS = 2000
BALANCE = 1000
TIMEOUTS = (0.3, 1.0, 2.0)
SHORT_SECONDS = 0.3
#: Between two transactions. Four clients without one would take a processor, which the faults need;
#: what is found comes of the transactions that a fault meets, one or two of each client.
PAUSE_SECONDS_MAX = 0.1
#: For submitted transactions: the time until they are awaited.
LATER_SECONDS_MAX = 2.5
LATER_COUNT_MAX = 4
LATER_SHARE = 0.7
#: All steps of a client from PREPARE on, and the question before it.
STEPS = ("prepare", "wait", "commit", "wait durable", "rollback", "outcome")
LED = "led"
#: One of so many clients uses the asyncio half.
ASYNC_EVERY = 3

_GID = re.compile(r"skq1\.[^']+")


class Journal:
    """Lines of JSON, one write each, so that a kill leaves no incomplete line."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: object) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Steps:
    """Between the package and its drivers: maps a request to a step."""

    def __init__(self, orders: Orders, prepares: Callable[[str], None]) -> None:
        self._orders = orders
        self._prepares = prepares
        self._finished: set[str] = set()  # gids whose outcome was requested
        self.is_led = False
        for driver in (blocking_driver, asyncio_driver):
            driver.results_of = self._observed(driver.results_of)

    def _observed(self, results_of: Callable[[Ask], PQGen[Any]]) -> Callable[[Ask], PQGen[Any]]:
        def observed(request: Ask) -> PQGen[Any]:
            step = self._step(request)
            if step == "prepare" and self.is_led:
                self._orders.reached(LED, BEFORE)
            self._orders.reached(step, BEFORE)
            words = results_of(request)
            if self._orders.is_armed(step, DURING):
                words = self._sent(words, step)
            answer = yield from words
            self._orders.reached(step, AFTER)
            return answer

        return observed

    def _sent(self, words: PQGen[Any], step: str) -> PQGen[Any]:
        """When it waits for the answer, the request is sent."""
        try:
            waits_for = next(words)
            if self._orders.reached(step, DURING) == DROP:
                raise psycopg.OperationalError("the answer was dropped")
            while True:
                waits_for = words.send((yield waits_for))
        except StopIteration as end:
            return end.value

    def _step(self, request: Request) -> str:
        """The step; "" for other requests."""
        assert isinstance(request, Ask)
        text = b"; ".join(request.statements).decode()
        found = _GID.search(text)
        gid = found[0] if found else ""
        if "PREPARE TRANSACTION" in text:
            self._prepares(gid)
            return "prepare"
        for words, step in (("COMMIT PREPARED", "commit"), ("ROLLBACK PREPARED", "rollback")):
            if words in text:
                self._finished.add(gid)
                return step
        if text.startswith("WAIT_LSN"):
            return "wait durable" if gid in self._finished else "wait"
        return "outcome" if text.startswith("OUTCOME") else ""


class Client:
    """One transaction after the other, without end."""

    def __init__(self, number: int, seed: int, calls: Calls, journal: Journal, plant: str) -> None:
        self._number = number
        self._rng = random.Random(f"{seed} {number}")
        self._calls = calls
        self._journal = journal
        self._plant = plant
        self._orders = Orders()
        self._steps = Steps(self._orders, self._prepares)
        self._seq = 0
        self._later: list[tuple[float, int, Any]] = []

    def run(self) -> None:
        pause = threading.Event()
        while True:
            if not self._orders.resumed.is_set():
                self._wait_for_submitted(sys.maxsize)
                say("paused")
                self._orders.resumed.wait()
            self._seq += 1
            self._transact(self._seq)
            self._wait_for_submitted(time.monotonic())
            pause.wait(self._rng.uniform(0.0, PAUSE_SECONDS_MAX))

    # ---- one transaction

    def _transact(self, seq: int) -> None:
        self._steps.is_led = self._orders.is_led()
        options = self._options()
        tx = self._calls.transaction(**options)
        try:
            self._calls.run(tx, self._statements(seq))
        except (psycopg.Error, PoolTimeout, QsyncError) as error:
            self._note_failure(seq, tx, error)
            return
        if options["wait"] == "complete":
            self._end(seq, COMMITTED, tx.result.lsn)
        elif self._rng.random() < LATER_SHARE and len(self._later) < LATER_COUNT_MAX:
            self._submitted(seq, tx)
        else:
            self._wait_for(seq, tx, None)

    def _options(self) -> dict[str, Any]:
        rng = self._rng
        options = {
            "timeout": rng.choice(TIMEOUTS),
            "on_timeout": rng.choice(("detach", "detach", "rollback")),
            "confirm": rng.choice(("durable", "durable", "visible")),
            "wait": rng.choice(("complete", "complete", "submit")),
        }
        if options["wait"] == "submit":
            options["on_timeout"] = rng.choice(("detach", "rollback", "rollback"))
        if self._steps.is_led:
            options |= {"timeout": SHORT_SECONDS, "on_timeout": "rollback", "wait": "complete"}
        return options

    def _submitted(self, seq: int, tx: Any) -> None:
        """It writes down the position of its PREPARE, as a careful client would: it may die
        meanwhile."""
        if isinstance(tx.outcome, Pending):
            self._end(seq, PENDING, tx.outcome.lsn)
        due = time.monotonic() + self._rng.uniform(0.0, LATER_SECONDS_MAX)
        self._later.append((due, seq, tx))

    def _wait_for_submitted(self, until: float) -> None:
        """All that are due."""
        due = [each for each in self._later if each[0] <= until]
        self._later = [each for each in self._later if each[0] > until]
        for _, seq, tx in due:
            self._wait_for(seq, tx, self._rng.choice((None, *TIMEOUTS)))

    def _wait_for(self, seq: int, tx: Any, timeout: float | None) -> None:
        try:
            self._end(seq, COMMITTED, self._calls.wait(tx, timeout).lsn)
        except (psycopg.Error, PoolTimeout, QsyncError) as error:
            self._note_failure(seq, tx, error)

    def _note_failure(self, seq: int, tx: Any, error: Exception) -> None:
        match error:
            case TransactionPending():
                self._pending(seq, error.outcome)
            case TransactionRefused():
                self._end(seq, NEVER)
            case NotCommitted():
                self._end(seq, ROLLED_BACK)
            case _:
                self._failed(seq, tx.outcome)

    def _failed(self, seq: int, outcome: Outcome | None) -> None:
        """A statement in the block has failed, or there was no connection at the end."""
        match outcome:
            case Pending():
                self._pending(seq, outcome)
            case Committed():
                self._end(seq, COMMITTED)
            case _:
                self._end(seq, NEVER)

    def _statements(self, seq: int) -> list[Statement]:
        source, target = sorted(self._rng.sample(range(ACCOUNTS), 2))
        amount = self._rng.randint(-9, 9)
        row = (self._number, seq, source, target, amount)
        return [
            ("SET LOCAL lock_timeout = '500ms'", ()),
            ("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, source)),
            ("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, target)),
            ("INSERT INTO moves VALUES (%s, %s, %s, %s, %s)", row),
        ]

    def _pending(self, seq: int, pending: Pending) -> None:
        if self._plant == "gone":
            self._end(seq, ROLLED_BACK)
            return
        self._end(seq, PENDING, pending.lsn)
        if self._rng.random() < 0.5:
            return  # another client asks
        try:
            outcome = self._calls.outcome(pending, self._rng.choice((0.1, 2.0)))
        except (CoordinatorError, OutcomeUnknown):
            return
        match outcome:
            case Committed(lsn):
                self._end(seq, COMMITTED, lsn)
            case RolledBack():
                self._end(seq, ROLLED_BACK)
            case Pending():
                return

    def _prepares(self, gid: str) -> None:
        self._journal.write(n=self._seq, gid=gid)

    def _end(self, seq: int, end: str, lsn: int = 0) -> None:
        self._journal.write(n=seq, end=end, lsn=lsn)


def main() -> None:
    number, seed, dsn, coordinator, path, *plants = sys.argv[1:]
    plant = "".join(plants)
    if plant == "confirm":  # a wait that has timed out counts as one that was confirmed
        Verdict.is_confirmed = True  # type: ignore[method-assign,assignment]
    kind = BlockingCalls if int(number) % ASYNC_EVERY else AsyncCalls
    Client(int(number), int(seed), kind(dsn, coordinator), Journal(path), plant).run()


if __name__ == "__main__":
    main()
