"""The next segments of a recovery, made ready by a process beside it.

    pg_wal/RECOVERYXLOG              what restore_command was asked to write
    pg_wal/.sk-prefetch/9A3F01C4/    of one restore_command, by a checksum of its options
        asked                        the segment asked for last; without it the process ends
        lock                         held by the process while it lives
        000000010000000000000006.tmp on its way
        000000010000000000000006-1A2B3C4D     ready: checked, synced, with its CRC-32

`sk archive fetch` takes a ready one by renaming it, which needs neither the archive nor most of
our code (zlib's CRC, because importing the other one takes 20 ms).

Laws. A file is ready only when it was checked as any other that comes from the archive; it is taken
only if its bytes have their CRC, and only while it is young; whatever is wrong with this folder,
the file is fetched as if there were none. The process keeps at most `ahead` segments, and leaves
nothing behind when it ends: at the end of the WAL, or when nobody has asked for a while.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage import durable
from storage.errors import StorageError

FOLDER = ".sk-prefetch"
ASKED, LOCK, TEMPORARY = "asked", "lock", ".tmp"
AGE_SECONDS_MAX = 600.0
POLL_SECONDS = 0.005
#: How long a segment that is on its way is waited for, before it is fetched without.
WAIT_SECONDS = 10.0
SEGMENT_NAME_LENGTH = 24
READY_NAME_LENGTH = SEGMENT_NAME_LENGTH + len("-1A2B3C4D")
#: Whatever of the environment may say which archive it is.
VARIABLES = ("SK_", "AWS_", "AZURE_", "GOOGLE_")


def take_prefetched(arguments: Sequence[str]) -> bool:
    """The whole of `sk archive fetch OPTIONS... FILE PATH` when the file is ready, and when the
    process goes on making others ready; else nothing is done."""
    *options, name, path = ("", "", *arguments)
    if len(name) != SEGMENT_NAME_LENGTH:
        return False
    target = Path(path)
    folder = PrefetchFolder.beside(target, options[2:])
    return folder.is_running() and folder.mark(name) and folder.take(name, target)


class PrefetchFolder:
    """`beside` the file that is asked for, one for each way in which it is asked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def beside(cls, target: Path, options: Sequence[str]) -> PrefetchFolder:
        """`options` are those of `sk archive fetch`, as they are given: all that names an archive
        is in them and in the environment."""
        environment = sorted(each for each in os.environ.items() if each[0].startswith(VARIABLES))
        checksum = zlib.crc32(repr((list(options), environment)).encode())
        return cls(target.absolute().parent / FOLDER / f"{checksum:08X}")

    def take(self, name: str, target: Path) -> bool:
        """Make the segment's file, if it is ready or nearly so; whether it was."""
        deadline = time.monotonic() + WAIT_SECONDS
        on_its_way = self.path / f"{name}{TEMPORARY}"
        while on_its_way.exists() and self.is_running() and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        try:
            for path in self.ready():
                if _name_of(path) == name and _is_good(path):
                    durable.publish_file(path, target)
                    return True
        except (OSError, StorageError):
            return False  # the process has ended and removed it: it is fetched instead
        return False

    def ready(self) -> list[Path]:
        """The files of all segments that are ready."""
        try:
            return sorted(p for p in self.path.iterdir() if len(p.name) == READY_NAME_LENGTH)
        except OSError:
            return []

    def asked(self) -> str | None:
        """The name that was asked for last; None when the end has been reached."""
        try:
            return (self.path / ASKED).read_text()
        except OSError:
            return None

    def mark(self, name: str) -> bool:
        """Those behind `name` are wanted next; whether that could be said. Before `name` is taken:
        or the process would get it ready once more."""
        try:
            temporary = self.path / f"{ASKED}{TEMPORARY}"
            temporary.write_text(name)
            temporary.rename(self.path / ASKED)
        except OSError:
            return False  # the disk is full, or the process has just ended
        return True

    def ask(self, name: str, settings: Mapping[str, object]) -> None:
        """mark(), and start the process unless it runs."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return  # then without
        if self.mark(name) and not self.is_running():
            _start({**settings, "folder": str(self.path)})

    def end(self) -> None:
        """There is no more: the process removes what is here, or else we."""
        try:
            (self.path / ASKED).unlink(missing_ok=True)
        except OSError:
            return  # there has never been a folder
        if not self.is_running():
            self.remove()

    def is_running(self) -> bool:
        try:
            with (self.path / LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    def remove(self) -> None:
        """All of it, and the folder around it when it was the last."""
        try:
            for path in self.path.iterdir():
                path.unlink(missing_ok=True)
            self.path.rmdir()
            self.path.parent.rmdir()
        except OSError:
            return  # gone already, or another archive's are there

    def add(self, name: str, content: bytes) -> None:
        """It is ready. Raises StorageError."""
        temporary = self.path / f"{name}{TEMPORARY}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            durable.write_all(fd, content, 0, temporary)
            durable.sync_data(fd, temporary)
        finally:
            os.close(fd)
        os.rename(temporary, self.path / f"{name}-{zlib.crc32(content):08X}")


def _name_of(path: Path) -> str:
    return path.name.partition("-")[0]


def _is_good(path: Path) -> bool:
    """Young, and with the bytes that it was made with; what is not is removed."""
    content = path.read_bytes()
    # Both are this machine's clock; one that was set back makes a file too young, which is none.
    age_seconds = time.time_ns() / 1e9 - path.stat().st_mtime
    is_good = (
        path.name == f"{_name_of(path)}-{zlib.crc32(content):08X}"
        and 0 <= age_seconds <= AGE_SECONDS_MAX
    )
    if not is_good:
        path.unlink()
    return is_good


def _start(settings: Mapping[str, object]) -> None:
    """Detached: Postgres waits for restore_command, and must not wait for this. The settings go
    through a pipe, since everybody on a machine sees the arguments of a process."""
    import json
    import subprocess

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "backup.prefetcher"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(settings).encode())
    process.stdin.close()
    process.returncode = 0  # it is init's child when we are gone, and nobody waits for it here
