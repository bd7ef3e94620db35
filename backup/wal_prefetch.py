"""The next segments of a recovery, made ready by a process beside it.

    pg_wal/RECOVERYXLOG                   what restore_command is to make
    pg_wal/.sk-prefetch/TENANT/TIMELINE/
        000000010000000000000006          ready: whole, checked, synced
        000000010000000000000007.tmp      on its way
        asked                             the last one that was not ready; without it, it ends
    pg_wal/.sk-prefetch/TENANT/TIMELINE.lock    held by the process, from before its start until
                                          the folder is gone

Whoever needs a segment that is ready takes it by renaming it: the `mv` of a restore_command, in
2 ms, or `sk archive fetch`. The process sees that it is gone, and makes another one ready.

Laws. A name in this folder stands for bytes that never change: a whole segment of this timeline,
checked as any other that comes from the archive, and it has its name from the moment on when it is
synced. So neither its age matters nor who made it. Whatever is wrong with the folder, a file is
fetched as if there were none. The process keeps at most `ahead` segments, and leaves nothing behind
when it ends: at the end of the WAL, or when nobody has taken any for a while.
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

from consensus.ids import TimelineId
from storage import durable

FOLDER = ".sk-prefetch"
ASKED, LOCK, TEMPORARY = "asked", ".lock", ".tmp"
POLL_SECONDS = 0.005
#: How long a segment that is on its way is waited for, before it is fetched without.
WAIT_SECONDS = 10.0
SEGMENT_NAME_LENGTH = 24


class PrefetchFolder:
    """One for each timeline, `beside` the file that is asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Beside the folder, so that it can be held until the folder is gone.
        self.lock = path.with_name(f"{path.name}{LOCK}")

    @classmethod
    def beside(cls, target: Path, timeline: TimelineId) -> PrefetchFolder:
        return cls(target.absolute().parent / FOLDER / str(timeline))

    # ---- who needs a segment

    def take(self, name: str, target: Path) -> bool:
        """Make the segment's file, if it is ready or nearly so; whether it was."""
        deadline = time.monotonic() + WAIT_SECONDS
        on_its_way = self.path / f"{name}{TEMPORARY}"
        while on_its_way.exists() and self.is_running() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        try:
            (self.path / name).rename(target)  # Postgres syncs the name that it gives it
        except OSError:
            return False
        return True

    def ask(self, name: str, settings: Mapping[str, object]) -> None:
        """`name` was fetched without, those behind it are wanted next. Starts the process unless it
        runs; `settings` are for its `prefetch`."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary = self.path / f"{ASKED}{TEMPORARY}"
            temporary.write_text(name)
            temporary.rename(self.path / ASKED)
            with self._locked() as lock:
                _start({**settings, "folder": str(self.path)}, lock)
        except OSError:
            return  # it runs; or the disk is full, and it goes without

    def end(self) -> None:
        """There is no more: the process removes what is here, or else we."""
        try:
            (self.path / ASKED).unlink(missing_ok=True)
            with self._locked():
                self.remove()
        except OSError:
            return  # there has never been a folder; or the process removes it

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """Raises BlockingIOError while another has it, or OSError. A lock whose file was removed
        after it was opened holds nothing: the next one makes another file."""
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
        """The last one that was not ready; None when the end has been reached."""
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
        """It is ready. Raises StorageError, OSError."""
        temporary = self.path / f"{name}{TEMPORARY}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            durable.write_all(fd, content, 0, temporary)
            durable.sync_data(fd, temporary)
        finally:
            os.close(fd)
        temporary.rename(self.path / name)

    def remove(self) -> None:
        """All of it, by who holds the lock, which goes last; then the folders around it, when it
        was the last."""
        try:
            for path in self.path.iterdir():
                path.unlink(missing_ok=True)
            self.path.rmdir()
            self.lock.unlink()
            for folder in self.path.parents[:2]:
                folder.rmdir()
        except OSError:
            return  # gone already, or another timeline's are there


def _start(settings: Mapping[str, object], lock: BinaryIO) -> None:
    """Detached: Postgres waits for restore_command, and must not wait for this. The settings go
    through a pipe, since everybody on a machine sees the arguments of a process; the lock is its
    own from now on."""
    import json
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "backup.prefetcher"],
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
    process.returncode = 0  # it is init's child when we are gone, and nobody waits for it here
