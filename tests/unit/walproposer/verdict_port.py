"""A coordinator's port on its own loop, with a `Verdicts` that knows one number."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event, Lock, Thread
from traceback import print_exception
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.qsync.answers import (
    Admission,
    Confirmation,
    FoundOutcome,
    LimboRow,
    Outcome,
    StatusPage,
)
from quorum_wal.walproposer.qsync.limbo_events import Verdict
from quorum_wal.walproposer.qsync.question import Question
from quorum_wal.walproposer.qsync.verbs import (
    Admit,
    AskOutcome,
    Barrier,
    Resolve,
    ShowList,
    ShowStatus,
    WaitLsn,
)
from quorum_wal.walproposer.qsync.verdict_server import PortConfig, VerdictServer
from quorum_wal.walproposer.stream.event_loop import EventLoop, HasFileno

TERM = 7
DEADLINE_SECONDS = 30.0
LONG_MS = 60_000
GID = f"skq1.d.19c1f0a3e55.1-16b374d848-2f1-1.{'0' * 32}"


class OneNumber:
    """Answers from a commit_lsn, which any thread may advance. `asked`, `taken_back` and `left` are
    the calls of the port."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.taken_back: list[int] = []
        self.left: list[int] = []
        self.rows: list[LimboRow] = []
        self._lock = Lock()
        self._commit_lsn = 0
        self._waiting: dict[int, Question] = {}

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def ask(self, question: Question) -> None:
        self.asked.append(question)
        match question.verb:
            case Admit():
                question.answer(Admission(TERM, self.waiting))
            case WaitLsn(lsn, timeout_ms) | Barrier(lsn, timeout_ms):
                with self._lock:
                    if lsn > self._commit_lsn and timeout_ms:
                        self._waiting[question.waiter] = question
                        return
                is_confirmed = lsn <= self._commit_lsn
                self._confirm(question, Verdict.CONFIRMED if is_confirmed else Verdict.PENDING)
            case AskOutcome(gid, lsn):
                if lsn is None:
                    question.refuse("42704", f"nothing is known of {gid}", "Give an LSN.")
                else:
                    question.answer(FoundOutcome(Outcome.UNKNOWN, None))
            case ShowStatus():
                question.answer(StatusPage({"term": TERM, "list": [1, "é"]}))
            case ShowList():
                question.answer(*self.rows)
            case Resolve(commit=commit):
                self._confirm(question, Verdict.COMMITTED if commit else Verdict.ROLLED_BACK)

    def cancel_question(self, waiter: int) -> None:
        self.taken_back.append(waiter)
        self._forget(waiter)

    def leave(self, waiter: int) -> None:
        self.left.append(waiter)
        self._forget(waiter)

    def advance(self, commit_lsn: int) -> None:
        with self._lock:
            self._commit_lsn = commit_lsn
            ready = [
                question
                for question in self._waiting.values()
                if isinstance(question.verb, WaitLsn | Barrier) and question.verb.lsn <= commit_lsn
            ]
            for question in ready:
                del self._waiting[question.waiter]
        for question in ready:
            self._confirm(question, Verdict.CONFIRMED)

    def _confirm(self, question: Question, verdict: Verdict) -> None:
        question.answer(Confirmation(verdict, Lsn(self._commit_lsn), TERM))

    def _forget(self, waiter: int) -> None:
        with self._lock:
            self._waiting.pop(waiter, None)


@dataclass(frozen=True, slots=True)
class Interest:
    """What the loop waits for. A client of the port that is sent more than the kernel accepts waits
    to write; one that has sent more than the port buffers is only watched until it leaves."""

    reads: bool = True
    writes: bool = False
    leaves: bool = False


class ObservedLoop(EventLoop):
    """Other threads can read `interests`, by file: the oldest first."""

    def __init__(self) -> None:
        self.interests: dict[HasFileno, Interest] = {}
        super().__init__()

    def watch(
        self, file: HasFileno, on_readable: Callable[[], None], on_writable: Callable[[], None]
    ) -> None:
        super().watch(file, on_readable, on_writable)
        self.interests[file] = Interest()

    def unwatch(self, file: HasFileno) -> None:
        super().unwatch(file)
        self.interests.pop(file, None)

    def set_interest(
        self, file: HasFileno, *, reads: bool, writes: bool, leaves: bool = False
    ) -> None:
        super().set_interest(file, reads=reads, writes=writes, leaves=leaves)
        if file in self.interests:
            self.interests[file] = Interest(reads, writes, leaves)


class Port:
    """The test's thread can read `verdicts` and the interests of `loop`."""

    def __init__(self, server: VerdictServer, verdicts: OneNumber, loop: ObservedLoop) -> None:
        self.server = server
        self.verdicts = verdicts
        self.loop = loop
        self.turns = 0  # of the loop
        host, _, port = server.address.rpartition(":")
        self.address = host, int(port)
        self._own_files = set(loop.interests)

    @property
    def listener(self) -> socket.socket:
        (listener,) = [
            file
            for file in self._own_files
            if isinstance(file, socket.socket) and file.getsockname() == self.address
        ]
        return listener

    def only_client(self) -> socket.socket:
        """Our end of its connection, after the handshake."""

        def find() -> list[HasFileno]:
            found = [file for file in [*self.loop.interests] if file not in self._own_files]
            return found if len(found) == 1 else []

        (file,) = wait_until(find, DEADLINE_SECONDS, "one client")
        assert isinstance(file, socket.socket)
        return file

    def waits_to_write(self, client: socket.socket) -> bool:
        """The kernel accepts no more for this client."""
        return self.loop.interests[client].writes

    def reads_no_more(self, client: socket.socket) -> bool:
        """All that may be buffered of this client is."""
        return self.loop.interests[client] == Interest(reads=False, writes=False, leaves=True)

    def conninfo(self, **settings: str) -> str:
        host, port = self.address
        return make_conninfo("", **{"user": "app", "host": host, "port": str(port), **settings})

    def connect(self, **settings: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo(**settings), autocommit=True)


@contextmanager
def running(config: PortConfig) -> Iterator[Port]:
    verdicts = OneNumber()
    with closing(ObservedLoop()) as loop:
        yield from _running(VerdictServer(config, verdicts, loop), loop, verdicts)


def _running(server: VerdictServer, loop: ObservedLoop, verdicts: OneNumber) -> Iterator[Port]:
    port = Port(server, verdicts, loop)
    stopping, bugs = Event(), list[BaseException]()

    def run() -> None:
        try:
            while not stopping.is_set():
                loop.run_once(DEADLINE_SECONDS)
                port.turns += 1
        except BaseException as bug:
            bugs.append(bug)
            print_exception(bug)  # a thread that waits for an answer will fail first

    thread = Thread(target=run, name="loop", daemon=True)
    thread.start()
    try:
        yield port
    finally:
        stopping.set()
        loop.wake()
        thread.join(DEADLINE_SECONDS)
        server.close()
    assert not bugs, bugs
    assert server.connections == 0
    admission = server.access.admission
    assert (admission.unauthenticated, admission.authenticated) == (0, 0)


def waiting(verdicts: OneNumber, count: int) -> None:
    wait_until(lambda: verdicts.waiting == count, DEADLINE_SECONDS, f"{count} waiters")


def row(result: psycopg.Cursor[tuple[Any, ...]]) -> tuple[Any, ...]:
    found = result.fetchone()
    assert found is not None
    return found


def limbo_row() -> LimboRow:
    at = datetime(2026, 11, 24, 10, tzinfo=UTC)
    return LimboRow(GID, "d", "o", at, 1.5, Lsn(16), True, False, "detach", at, "prepared")
