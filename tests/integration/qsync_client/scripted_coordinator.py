"""The port of a coordinator whose answers a test controls.

By default it answers as the real one does. `commit_lsn` is the position of the quorum, and WAIT_LSN
waits for it, unless its position is not the end of that gid's PREPARE. `script` is called first,
and can answer a question, refuse it, or leave it open.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event, RLock, Thread
from types import TracebackType
from typing import Self

from quorum_wal.access.access import AccessConfig
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.qsync.answers import Admission, Confirmation, FoundOutcome, Outcome
from quorum_wal.walproposer.qsync.limbo_events import NEVER_LSN, Verdict
from quorum_wal.walproposer.qsync.question import Question
from quorum_wal.walproposer.qsync.verbs import WORDS, Admit, AskOutcome, Barrier, WaitLsn
from quorum_wal.walproposer.qsync.verdict_server import OPEN_ACCESS, PortConfig, VerdictServer
from quorum_wal.walproposer.stream.event_loop import EventLoop

TERM = 7
TICK_SECONDS = 0.01
TIMEOUT = 30.0  # seconds

#: True: the question has been answered, or never will be.
Script = Callable[[Question], bool]


class ScriptedCoordinator:
    """A context manager. `access`: the clients that may connect. `asked`: all questions, in order.
    `left`: connections that ended."""

    def __init__(self, access: AccessConfig = OPEN_ACCESS) -> None:
        self.asked: list[Question] = []
        self.left: list[int] = []
        self.taken_back: list[int] = []
        self.outcome = Outcome.PENDING
        self.script: Script = lambda _: False
        self._lock = RLock()
        self._commit_lsn = NEVER_LSN
        self._waiting: dict[int, tuple[float, Question]] = {}
        self._spoken_for: dict[int, str] = {}  # gids, by the number of the connection
        self._loop = EventLoop()
        self._server = VerdictServer(PortConfig("127.0.0.1", 0, access), self, self._loop)
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="coordinator", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.address.rpartition(":")[2])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def verbs(self) -> list[str]:
        """The verbs of all questions."""
        return [WORDS[type(question.verb)] for question in self.asked]

    @property
    def connections(self) -> int:
        return self._server.connections

    def advance(self, commit_lsn: int = NEVER_LSN) -> None:
        """Set the position of the quorum, by default to the end; any thread may call it."""
        with self._lock:
            self._commit_lsn = commit_lsn
            for _, question in list(self._waiting.values()):
                self._decide(question, is_late=False)

    # ---- Verdicts

    def ask(self, question: Question) -> None:
        self.asked.append(question)
        verb = question.verb
        if isinstance(verb, WaitLsn) and verb.gid is not None:
            with self._lock:
                self._spoken_for[question.waiter] = str(verb.gid)
        if self.script(question):
            return
        match verb:
            case Admit():
                question.answer(Admission(TERM, 0))
            case WaitLsn(gid=Gid(begin_lsn=begin_lsn)) if verb.lsn <= begin_lsn:
                question.refuse("22023", f"{Lsn(verb.lsn)} is not the end of a PREPARE")
            case WaitLsn() | Barrier():
                with self._lock:
                    due = time.monotonic() + verb.timeout_ms / 1000
                    self._waiting[question.waiter] = due, question
                    self._decide(question, is_late=not verb.timeout_ms)
            case AskOutcome():
                question.answer(FoundOutcome(self.outcome, None))
            case _:
                question.refuse("0A000", f"no script for {verb}")

    def is_spoken_for(self, gid: str) -> bool:
        """Whether a connection that has sent WAIT_LSN for it is open: the janitor does not touch it
        then."""
        with self._lock:
            return gid in self._spoken_for.values()

    def wait_orphaned(self, gid: str) -> None:
        """Wait as the janitor does before it finishes a transaction that a client has left."""
        wait_until(lambda: not self.is_spoken_for(gid), TIMEOUT, f"the client of {gid} to go")

    def cancel_question(self, waiter: int) -> None:
        self.taken_back.append(waiter)
        self._waiting.pop(waiter, None)

    def leave(self, waiter: int) -> None:
        self.left.append(waiter)
        self._waiting.pop(waiter, None)
        with self._lock:
            self._spoken_for.pop(waiter, None)

    def _decide(self, question: Question, *, is_late: bool) -> None:
        assert isinstance(question.verb, WaitLsn | Barrier)
        is_reached = question.verb.lsn <= self._commit_lsn
        if is_reached or is_late:
            del self._waiting[question.waiter]
            verdict = Verdict.CONFIRMED if is_reached else Verdict.PENDING
            lsn = Lsn(min(self._commit_lsn, question.verb.lsn))
            question.answer(Confirmation(verdict, lsn, TERM))

    # ---- the thread

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        self._loop.wake()
        self._thread.join()
        self._server.close()
        self._loop.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._loop.run_once(TICK_SECONDS if self._waiting else 1.0)
            with self._lock:
                now = time.monotonic()
                for due, question in list(self._waiting.values()):
                    if due <= now:
                        self._decide(question, is_late=True)
