"""`ClientProcess`: a client of qsync as a process, its orders and its journal."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from quorum_wal.pg_fixtures.fork_server import ForkServer
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.errors import DeadlineExceeded

from .qsync_book import QsyncBook

PROGRAM = "tests.soak.qsync_client"
END_SECONDS = 10.0

_numbers = count(1)
_orders = count(1)


class ClientProcess:
    """Each start is a new client in the book, with its own number. `server` has imported PROGRAM,
    which is most of what a client costs that is soon killed."""

    def __init__(
        self,
        server: ForkServer,
        folder: Path,
        seed: int,
        dsn: str,
        coordinator: str,
        book: QsyncBook,
        planted: str = "",
    ) -> None:
        self._server = server
        self._folder = folder
        self._planted = [planted] if planted else []
        self._arguments = [str(seed), dsn, coordinator]
        self._book = book
        self._read_bytes = 0
        self._said: SimpleQueue[str] = SimpleQueue()
        self._heard: set[str] = set()
        self.start()

    def start(self) -> None:
        self.number = next(_numbers)
        self._journal = self._folder / f"client-{self.number}.journal"
        self._read_bytes = 0
        self._said, self._heard = SimpleQueue(), set()
        program = [
            *(sys.executable, "-m", PROGRAM),
            *(str(self.number), *self._arguments, str(self._journal), *self._planted),
        ]
        stdin, orders = os.pipe()
        words, stdout = os.pipe()
        with (self._folder / f"client-{self.number}.log").open("wb") as log:
            files = (stdin, stdout, log.fileno())
            self._process = self._server.start(program, files, os.environ)
        os.close(stdin)
        os.close(stdout)
        self._stdin, self._stdout = os.fdopen(orders, "w"), os.fdopen(words)
        self._listener = threading.Thread(
            target=self._listen, args=(self._stdout, self._said), daemon=True
        )
        self._listener.start()

    @staticmethod
    def _listen(lines: Iterable[str], said: SimpleQueue[str]) -> None:
        for line in lines:
            said.put(line.strip())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Allowed if dead."""
        if self.alive:
            os.kill(self._process.pid, signal.SIGKILL)
        self._process.wait(END_SECONDS)
        self._listener.join(END_SECONDS)
        for pipe in (self._stdin, self._stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # of an order that it did not receive
        self.read_journal()

    def order(self, *words: str) -> None:
        """Allowed if dead."""
        try:
            self._stdin.write("\t".join(words) + "\n")
            self._stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it has died meanwhile

    def arm(self, step: str, when: str, act: str) -> str:
        """Returns the message that it writes when it reaches the step."""
        number = str(next(_orders))
        self.order("arm", number, step, when, act)
        return f"at {number}"

    def wait_said(self, what: str, timeout: float) -> bool:
        """False if it has died before, or did not write it in time."""

        def said_or_dead() -> bool:
            is_dead = not self.alive
            if is_dead:
                self._listener.join(END_SECONDS)  # its last message counts
            return self._has_said(what) or is_dead

        try:
            wait_until(said_or_dead, timeout, f"client {self.number} to say {what}")
        except DeadlineExceeded:
            pass  # the answer is the same
        return what in self._heard

    def forget(self, what: str) -> None:
        """It may write it again."""
        self._heard.discard(what)

    def wait_dead(self, timeout: float) -> bool:
        try:
            wait_until(lambda: not self.alive, timeout, f"client {self.number} to die")
        except DeadlineExceeded:
            return False
        return True

    def _has_said(self, what: str) -> bool:
        try:
            while True:
                self._heard.add(self._said.get_nowait())
        except Empty:
            return what in self._heard

    def read_journal(self) -> None:
        """Add the new lines to the book."""
        if not self._journal.exists():
            return
        with self._journal.open("rb") as journal:
            journal.seek(self._read_bytes)
            lines = journal.read()
        whole = lines[: lines.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.splitlines():
            self._note(json.loads(line))

    def _note(self, line: dict[str, Any]) -> None:
        name = (self.number, int(line["n"]))
        if "gid" in line:
            self._book.begun(name, str(line["gid"]))
        else:
            self._book.told(name, str(line["end"]), int(line["lsn"]), by_client=True)
