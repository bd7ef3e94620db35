"""A process that prefetches the next segments while a server recovers.

    pg_wal/RECOVERYXLOG                   the file that restore_command creates
    pg_wal/.sk-prefetch/TENANT/TIMELINE/
        000000010000000000000006          ready: whole, checked, synced
        000000010000000000000007.tmp      being fetched
        asked                             the last segment that was not ready; without this file
                                          the process ends
    pg_wal/.sk-prefetch/TENANT/TIMELINE.lock    held by the process, from before its start until
                                          the folder is removed

A restore_command takes a ready segment by renaming it: with `mv`, in 2 ms, or with
`sk archive fetch`. The process sees that the segment is taken and fetches another one.

Laws. A segment in this folder never changes. It is a whole segment of this timeline, checked like
any other from the archive, and it gets its name only after it is synced. So neither its age nor the
process that fetched it matters. If the folder cannot be used, the file is fetched without it. The
process keeps at most `ahead` segments. It removes them when it ends: at the end of the WAL, or when
no segment has been taken for a while.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.storage import durable

FOLDER = ".sk-prefetch"
ASKED, LOCK, TEMPORARY = "asked", ".lock", ".tmp"
POLL_SECONDS = 0.005
#: How long to wait for a segment that is being fetched, before fetching it without the process.
WAIT_SECONDS = 10.0
SEGMENT_NAME_LENGTH = 24


class PrefetchFolder:
    """The folder of one timeline. `beside` finds it from the file that restore_command creates."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Beside the folder, so that it can be held until the folder is removed.
        self.lock = path.with_name(f"{path.name}{LOCK}")

    @classmethod
    def beside(cls, target: Path, timeline: TimelineId) -> PrefetchFolder:
        return cls(target.absolute().parent / FOLDER / str(timeline))

    # ---- restore_command

    def take(self, name: str, target: Path) -> bool:
        """Renames the segment to `target`. Waits while it is being fetched. False: not ready."""
        deadline = time.monotonic() + WAIT_SECONDS
        on_its_way = self.path / f"{name}{TEMPORARY}"
        while on_its_way.exists() and self.is_running() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        try:
            (self.path / name).rename(target)  # Postgres syncs the name that it gives the file
        except OSError:
            return False
        return True

    def ask(self, name: str, settings: Mapping[str, object]) -> None:
        """`name` was fetched without the process, and the next segments are wanted. Starts the
        process unless it runs; `settings` are the arguments of its `prefetch`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self.path / f"{ASKED}{TEMPORARY}"
            temporary.write_text(name)
            temporary.rename(self.path / ASKED)
            with self._locked() as lock:
                _start({**settings, "folder": str(self.path)}, lock)
        except OSError:
            return  # the process runs; or the disk is full, and nothing is prefetched

    def end(self) -> None:
        """The end of the WAL. Removes the folder, or leaves that to the process if it runs."""
        try:
            (self.path / ASKED).unlink(missing_ok=True)
            with self._locked():
                self.remove()
        except OSError:
            return  # the folder does not exist, or the process removes it

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Raises BlockingIOError if another process holds the lock, or OSError. A lock whose file
        was removed after it was opened excludes nothing, as the next process creates a new file."""
        with self.lock.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(lock.fileno()).st_nlink == 0:
                raise BlockingIOError(f"{self.lock} was removed")
            yield lock

    def is_running(self) -> bool:
        try:
            with self.lock.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    # ---- the process

    def asked(self) -> str | None:
        """The last segment that was not ready; None after the end of the WAL."""
        try:
            return (self.path / ASKED).read_text()
        except OSError:
            return None

    def ready(self) -> set[str]:
        """The names of all segments that are ready."""
        try:
            return {name for name in os.listdir(self.path) if len(name) == SEGMENT_NAME_LENGTH}
        except OSError:
            return set()

    def add(self, name: str, content: bytes) -> None:
        """Stores a segment as ready. Raises StorageError, OSError."""
        temporary = self.path / f"{name}{TEMPORARY}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            durable.write_all(fd, content, 0, temporary)
            durable.sync_data(fd, temporary)
        finally:
            os.close(fd)
        temporary.rename(self.path / name)

    def remove(self) -> None:
        """Removes the folder; the caller holds the lock, which is removed last. Then removes the
        folders above, if they are empty."""
        try:
            for path in self.path.iterdir():
                path.unlink(missing_ok=True)
            self.path.rmdir()
            self.lock.unlink()
            for folder in self.path.parents[:2]:
                folder.rmdir()
        except OSError:
            return  # removed already, or other timelines have folders there


def _start(settings: Mapping[str, object], lock: BinaryIO) -> None:
    """Detached, because Postgres waits for restore_command, and must not wait for this process.
    The settings go through a pipe, because all users can see the arguments of a process. The new
    process holds the lock from now on."""
    import json
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "quorum_wal.backup.prefetcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        pass_fds=[lock.fileno()],
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode())
    process.stdin.close()
    process.returncode = 0  # init adopts it after our end; we do not wait for it
