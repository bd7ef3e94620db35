"""A client of qsync as a process of its own, which may be told to die, or to wait, at a step.

    python -m tests.soak.qsync_client NUMBER SEED DSN COORDINATOR JOURNAL      orders come by stdin

It moves money and inserts a row, transaction after transaction. To its journal it writes a line
before each PREPARE and after each end: what is not in there was not begun, or not told. Orders:

    arm <tab> STEP <tab> before|after <tab> die|stop     with stop it says `at`, and waits for `go`
    next <tab> detach|rollback                           the policy of the next one, which is short
    pause, resume                                        between two transactions; it says `paused`

The steps are what the package asks its driver to do: its protocol is a generator of requests, so a
kill falls between two of them, or when the other side has done one and nobody has heard of it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg_pool import ConnectionPool, PoolTimeout

from qsync import blocking_driver
from qsync.client import Qsync
from qsync.coordinator_client import Verdict
from qsync.errors import (
    CoordinatorError,
    NotCommitted,
    OutcomeUnknown,
    QsyncError,
    TransactionPending,
    TransactionRefused,
)
from qsync.outcome import Committed, Outcome, Pending, RolledBack
from qsync.steps import Ask, Request

from .qsync_book import COMMITTED, NEVER, PENDING, ROLLED_BACK

ACCOUNTS = 400
BALANCE = 1000
STOP_SECONDS = 60.0
SHORT_SECONDS = 0.5
PAUSE_SECONDS_MAX = 0.03
CONNECT_SECONDS = 5
#: Of all that a client may do from PREPARE on, and of the question before it.
STEPS = ("prepare", "wait", "commit", "wait durable", "rollback", "outcome")


class Orders:
    """From stdin; a thread reads them."""

    def __init__(self) -> None:
        self._armed: tuple[str, str, str] | None = None
        self._go = threading.Event()
        self.resumed = threading.Event()
        self.resumed.set()
        self.policies: list[str] = []
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            match line.rstrip("\n").split("\t"):
                case ["arm", step, when, act]:
                    self._go.clear()
                    self._armed = (step, when, act)
                case ["next", policy]:
                    self.policies.append(policy)
                case ["go"]:
                    self._go.set()
                case ["pause"]:
                    self.resumed.clear()
                case ["resume"]:
                    self.resumed.set()
                case other:
                    raise AssertionError(other)
        os.kill(os.getpid(), signal.SIGKILL)  # its parent is gone

    def reached(self, step: str, when: str) -> None:
        armed = self._armed
        if armed is None or armed[:2] != (step, when):
            return
        self._armed = None
        if armed[2] == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        say(f"at {step} {when}")
        self._go.wait(STOP_SECONDS)


def say(line: str) -> None:
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


class Journal:
    """Lines of JSON; one write each, so that a kill leaves no half of one."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, **line: object) -> None:
        os.write(self._fd, json.dumps(line).encode() + b"\n")


class Client:
    """One transaction after the other, for ever."""

    def __init__(self, number: int, seed: int, dsn: str, coordinator: str, journal: str) -> None:
        self._number = number
        self._rng = random.Random(f"{seed} {number}")
        self._orders = Orders()
        self._journal = Journal(journal)
        self._qsync = Qsync(coordinator)
        self._pool = ConnectionPool(
            dsn,
            min_size=0,
            max_size=2,
            timeout=CONNECT_SECONDS,
            reconnect_timeout=CONNECT_SECONDS,
            check=ConnectionPool.check_connection,
            kwargs={"connect_timeout": CONNECT_SECONDS},
            open=True,
        )
        self._seq = 0
        self._has_finished = False
        observed = self._observed(blocking_driver._perform)
        blocking_driver._perform = observed  # type: ignore[assignment]

    def run(self) -> None:
        pause = threading.Event()
        while True:
            if not self._orders.resumed.is_set():
                say("paused")
                self._orders.resumed.wait()
            self._seq += 1
            self._transact(self._rng.choice(("complete", "complete", "submit")))
            pause.wait(self._rng.uniform(0.0, PAUSE_SECONDS_MAX))

    # ---- one transaction

    def _transact(self, wait: Any) -> None:
        self._has_finished = False
        timeout: float = self._rng.choice((0.5, 2.0, 5.0))
        policy: Any = self._rng.choice(("detach", "detach", "rollback"))
        if self._orders.policies:
            timeout, policy = SHORT_SECONDS, self._orders.policies.pop()
        tx = self._qsync.transaction(
            self._pool,
            timeout=timeout,
            on_timeout=policy,
            confirm=self._rng.choice(("durable", "durable", "visible")),
            wait=wait,
        )
        try:
            with tx:
                self._work(tx)
            result = tx.handle.wait() if wait == "submit" else tx.result
            self._end(COMMITTED, result.lsn)
        except TransactionPending as pending:
            self._pending(pending.outcome)
        except TransactionRefused:
            self._end(NEVER)
        except NotCommitted:
            self._end(ROLLED_BACK)
        except (psycopg.Error, PoolTimeout, QsyncError):
            self._failed(tx.outcome)

    def _failed(self, outcome: Outcome | None) -> None:
        """A statement in the block has failed; or there was no connection for the end."""
        match outcome:
            case Pending():
                self._pending(outcome)
            case Committed():
                self._end(COMMITTED)
            case _:
                self._end(NEVER)

    def _work(self, tx: Any) -> None:
        source, target = sorted(self._rng.sample(range(ACCOUNTS), 2))
        amount = self._rng.randint(-9, 9)
        tx.execute("SET LOCAL lock_timeout = '1s'")
        tx.execute("UPDATE accounts SET balance = balance - %s WHERE id = %s", (amount, source))
        tx.execute("UPDATE accounts SET balance = balance + %s WHERE id = %s", (amount, target))
        tx.execute(
            "INSERT INTO moves VALUES (%s, %s, %s, %s, %s)",
            (self._number, self._seq, source, target, amount),
        )

    def _pending(self, pending: Pending) -> None:
        self._end(PENDING, pending.lsn)
        if self._rng.random() < 0.5:
            return  # somebody else asks
        try:
            outcome = self._qsync.outcome(pending, timeout=self._rng.choice((0.1, 3.0)))
        except (CoordinatorError, OutcomeUnknown):
            return
        match outcome:
            case Committed(lsn):
                self._end(COMMITTED, lsn)
            case RolledBack():
                self._end(ROLLED_BACK)
            case Pending():
                return

    def _end(self, end: str, lsn: int = 0) -> None:
        self._journal.write(n=self._seq, end=end, lsn=lsn)

    # ---- its steps

    def _observed(self, perform: Callable[[Request], Any]) -> Callable[[Request], Any]:
        def observed(request: Request) -> Any:
            step = self._step(request)
            self._orders.reached(step, "before")
            answer = perform(request)
            self._orders.reached(step, "after")
            return answer

        return observed

    def _step(self, request: Request) -> str:
        """ "" of what is none."""
        if not isinstance(request, Ask):
            return ""
        text = b"; ".join(request.statements).decode()
        if "PREPARE TRANSACTION" in text:
            self._journal.write(
                n=self._seq, gid=text.split("PREPARE TRANSACTION '")[1].split("'")[0]
            )
            return "prepare"
        for words, step in (("COMMIT PREPARED", "commit"), ("ROLLBACK PREPARED", "rollback")):
            if words in text:
                self._has_finished = True
                return step
        if text.startswith("WAIT_LSN"):
            return "wait durable" if self._has_finished else "wait"
        return "outcome" if text.startswith("OUTCOME") else ""


# ---- bugs to be found


def confirm_in_time() -> None:
    """A wait whose time is over counts as one that was confirmed."""
    Verdict.is_confirmed = True  # type: ignore[method-assign,assignment]


PLANTS = {"confirm": confirm_in_time}


def main() -> None:
    number, seed, dsn, coordinator, journal, *planted = sys.argv[1:]
    for name in planted:
        PLANTS[name]()
    Client(int(number), int(seed), dsn, coordinator, journal).run()


if __name__ == "__main__":
    main()
