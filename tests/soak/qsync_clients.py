"""`ClientProcess`: a client of qsync as a process, its orders and what its journal says."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from pg_fixtures.waiting import wait_until
from pg_server.errors import DeadlineExceeded

from .qsync_book import QsyncBook

ROOT = Path(__file__).parents[2]
END_SECONDS = 10.0

_numbers = count(1)


class ClientProcess:
    """Each start is a new client to the book: a number of its own."""

    def __init__(
        self,
        folder: Path,
        seed: int,
        dsn: str,
        coordinator: str,
        book: QsyncBook,
        planted: str = "",
    ) -> None:
        self._folder = folder
        self._planted = [planted] if planted else []
        self._arguments = [str(seed), dsn, coordinator]
        self._book = book
        self._read_bytes = 0
        self._said: SimpleQueue[str] = SimpleQueue()
        self.start()

    def start(self) -> None:
        self.number = next(_numbers)
        self._journal = self._folder / f"client-{self.number}.journal"
        self._read_bytes = 0
        self._said = SimpleQueue()
        log = (self._folder / f"client-{self.number}.log").open("wb")
        with log:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.soak.qsync_client"),
                    *(str(self.number), *self._arguments, str(self._journal), *self._planted),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                text=True,
                start_new_session=True,
            )
        threading.Thread(target=self._listen, args=(self._process, self._said), daemon=True).start()

    @staticmethod
    def _listen(process: subprocess.Popen[str], said: SimpleQueue[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(line.strip())

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """Legal when dead."""
        if self.alive:
            self._process.kill()
        self._process.wait(END_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue  # of an order that it did not hear
        self.read_journal()

    def order(self, *words: str) -> None:
        """Legal when dead."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write("\t".join(words) + "\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return  # it has died meanwhile

    def wait_said(self, beginning: str, timeout: float) -> bool:
        """False when it has died, or did not come to it in time."""

        def has_said() -> bool:
            try:
                while not self._said.get_nowait().startswith(beginning):
                    continue
            except Empty:
                return False
            return True

        heard = False

        def heard_or_dead() -> bool:
            nonlocal heard
            heard = has_said()
            return heard or not self.alive

        try:
            wait_until(heard_or_dead, timeout, f"client {self.number} to say {beginning}")
        except DeadlineExceeded:
            return False
        return heard

    def read_journal(self) -> None:
        """What is new goes into the book."""
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
            self._book.told(name, str(line["end"]), int(line["lsn"]))
