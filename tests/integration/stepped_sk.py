"""`sk`, whose requests to the object store are counted, and which stands still, or dies, at one.

    STEP_AT=12            of the requests, counted from 1
    STEP_SIGNAL=STOP      or KILL: of itself, in the thread that asks
    STEP_IS_DONE=1        the request has landed then; without it it has not begun
    STEP_LOG=FILE         each request, when it begins: a line
    STEP_PACE=5           times as long as that are all timers and pauses
    STEP_CUTS=FILE        cuts are made by hand, without WAL; each position below which WAL may go
                          is a line. All timers of the pageserver are short

Everything else is the command as it is: its process, its port, its numbers, its store. The
variables are read when main() is called, so that a process with this module can be forked.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import quorum_wal.cli.archive_options
import quorum_wal.cli.main
from quorum_wal.objectstore.store import Data, ObjectInfo, ObjectStore, open_store
from quorum_wal.pageserver.config import ProcessConfig
from quorum_wal.pageserver.ingest.ingest import IngestState
from quorum_wal.pageserver.objects.page_index import Cut, PageIndex

T = TypeVar("T")

CUT_SECONDS = 0.1
RETRY_SECONDS = 0.2
TIMERS = {
    "validation_seconds": 0.1, "attachments_seconds": 0.2, "round_seconds": 0.1,
    "collect_seconds": 0.1, "scrub_seconds": 2.0,
}  # fmt: skip
RETRYING = (
    "attachments.attachment_shell.RETRY_SECONDS", "attachments.queue_shell.RETRY_SECONDS",
    "attachments.validation_shell.RETRY_SECONDS",
    "attachments.emergency_start.ADVANCE_RETRY_SECONDS",
    "attached_timeline.RETRY_SECONDS", "process.REGISTER_RETRY_SECONDS",
    "process.VALIDATION_DELAY_SECONDS", "process.LATE_SECONDS",
)  # fmt: skip


class SteppedStore:
    """An object store."""

    def __init__(self, store: ObjectStore, at: int, stop: Callable[[], None], log: Path) -> None:
        self.url = store.url
        self._store = store
        self._at = at
        self._is_done = bool(os.environ.get("STEP_IS_DONE"))
        self._stop = stop
        self._log = log.open("a", buffering=1)
        self._lock = threading.Lock()
        self._count = 0

    def _step(self, what: str, key: str, ask: Callable[[], T]) -> T:
        with self._lock:
            self._count += 1
            number = self._count
            self._log.write(f"{number} {what} {key}\n")
        if number == self._at and not self._is_done:
            self._stop()
        try:
            return ask()
        finally:  # that there is no such object is an answer, too
            if number == self._at and self._is_done:
                self._stop()

    def put(self, key: str, data: Data) -> None:
        self._step("put", key, lambda: self._store.put(key, data))

    def create(self, key: str, data: Data) -> bool:
        return self._step("create", key, lambda: self._store.create(key, data))

    def get(self, key: str) -> bytes:
        return self._step("get", key, lambda: self._store.get(key))

    def get_pieces(self, key: str) -> Iterator[bytes]:
        return self._step("get", key, lambda: self._store.get_pieces(key))

    def get_tail(self, key: str, length: int) -> bytes:
        return self._step("get", key, lambda: self._store.get_tail(key, length))

    def get_range(self, key: str, begin: int, length: int) -> bytes:
        return self._step("get", key, lambda: self._store.get_range(key, begin, length))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return iter(self._step("list", prefix, lambda: [*self._store.list(prefix, after)]))

    def list_folders(self, prefix: str) -> Sequence[str]:
        return self._step("list", prefix, lambda: self._store.list_folders(prefix))

    def delete(self, key: str) -> None:
        self._step("delete", key, lambda: self._store.delete(key))

    def delete_many(self, keys: Sequence[str]) -> None:
        self._step("delete", keys[0], lambda: self._store.delete_many(keys))


class HandMadeCuts(threading.Thread):
    """In the place of `Ingest`: an epoch each CUT_SECONDS or so, of files with any content."""

    def __init__(
        self,
        archive: Any,
        objects: Any,
        index_of: Callable[[], PageIndex],
        folder: Path,
        config: Any,
        hand_over: Callable[..., Callable[[float], bool | None]],
        suffix: Any,
        visible_lsn: Callable[[], int],
    ) -> None:
        super().__init__(daemon=True)
        self.state = IngestState(phase="receiving")
        self.base_forks = None  # there is no base backup: nothing is compacted
        self._index_of = index_of
        self._folder = folder
        self._hand_over = hand_over
        self._stopping = threading.Event()
        self._visible_lsn = visible_lsn
        self._told_lsn = 0
        self._given_up = Path(os.environ["STEP_CUTS"])
        self._cut_seconds = CUT_SECONDS * pace()

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _tell(self) -> None:
        """As safekeepers are told."""
        if self._visible_lsn() > self._told_lsn:
            self._told_lsn = self._visible_lsn()
            with self._given_up.open("a") as file:
                file.write(f"{self._told_lsn}\n")

    def run(self) -> None:
        while not self._stopping.wait(self._cut_seconds):
            cut = self._cut(self._index_of().newest_end_lsn + 100)
            stored = self._hand_over(cut, "base", self._files(cut.end_lsn))
            while (is_stored := stored(self._cut_seconds)) is None and not self._stopping.is_set():
                self._tell()
            self._tell()
            if not is_stored:
                self.state.problem = "the attachment writes no more"
                return
            self.state.cut_lsn = self.state.received_lsn = cut.end_lsn
            self.state.epochs += 1

    def _cut(self, end_lsn: int) -> Cut:
        return Cut(end_lsn - 20, end_lsn - 10, end_lsn, 1, int(datetime.now(UTC).timestamp()) - 1)

    def _files(self, end_lsn: int) -> Any:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = [self._folder / f"{what}-{end_lsn}" for what in ("layer", "frame")]
        for path in files:
            path.write_bytes(f"{path.name} of {os.getpid()} ".encode() * 100)
        return SimpleNamespace(parts=files[:1], frame=SimpleNamespace(path=files[1]))


def pace() -> float:
    return float(os.environ.get("STEP_PACE", "1"))


def _stop() -> None:
    """All of the process, before this thread does anything more."""
    number = signal.Signals[f"SIG{os.environ.get('STEP_SIGNAL', 'STOP')}"]
    signal.pthread_kill(threading.get_ident(), number)


def _opened(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
    at = int(os.environ.get("STEP_AT", "0"))
    return SteppedStore(open_store(url, options), at, _stop, Path(os.environ["STEP_LOG"]))


def main() -> None:
    vars(quorum_wal.cli.archive_options)["open_store"] = _opened
    if "STEP_CUTS" in os.environ:
        vars(import_module("quorum_wal.pageserver.attached_timeline"))["Ingest"] = HandMadeCuts
        timers: dict[str, Any] = {name: seconds * pace() for name, seconds in TIMERS.items()}
        settings = partial(ProcessConfig, **timers)
        vars(import_module("quorum_wal.cli.pageserver_run"))["ProcessConfig"] = settings
        for name in RETRYING:
            module, _, constant = name.rpartition(".")
            constants = vars(import_module(f"quorum_wal.pageserver.{module}"))
            assert constant in constants
            constants[constant] = RETRY_SECONDS * pace()
    quorum_wal.cli.main.main()


if __name__ == "__main__":
    main()
