"""The folder of a branch: what is in it, whose turn it is, and how it comes and goes.

    DIR/NAME/incomplete     first file of all, and last: no more than that is known of it
            |-- work/       WAL and a frame, while it is made
            |-- data/       the server's data directory
            |-- socket/     its socket, 0700
            `-- branch.json written when it is whole

Laws. With branch.json it is whole, without it is not. A removal begins by taking that name away. A
folder that has neither file, and is not empty, is none of ours: it is never removed. Who changes
one holds a lock on the folder; the kernel ends it with the process.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from pageserver.branches.branch_record import NAME, Branch, check_name, decode_branch
from pageserver.errors import BranchError
from storage import durable

RECORD, MARKER = "branch.json", "incomplete"
DATA, SOCKET, WORK = "data", "socket", "work"
LOCK_SECONDS_MAX = 1.0
POLL_SECONDS = 0.02
FOLDER_MODE = 0o711  # the server's account goes through it


class BranchState(Enum):
    """Of a branch's folder. BUSY: a process makes, starts, stops or removes it now."""

    RUNNING = "running"
    STOPPED = "stopped"
    BUSY = "busy"
    INCOMPLETE = "incomplete"


class BranchFolder:
    """DIR/NAME, there or not. Methods raise BranchError, StorageError."""

    def __init__(self, branches_dir: Path, name: str) -> None:
        check_name(name)
        self.name = name
        self.path = branches_dir.absolute() / name

    @property
    def data(self) -> Path:
        return self.path / DATA

    @property
    def socket(self) -> Path:
        return self.path / SOCKET

    @property
    def work(self) -> Path:
        return self.path / WORK

    def is_branch(self) -> bool:
        """Or what is left of one."""
        with _errors(self.path, "read"):
            try:
                names = os.listdir(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return not names or RECORD in names or MARKER in names

    def record(self) -> Branch | None:
        """None: it is not whole."""
        with _errors(self.path, "read"):
            try:
                data = (self.path / RECORD).read_bytes()
            except FileNotFoundError:
                return None
        return decode_branch(data)

    def require(self) -> Branch:
        """One that is whole."""
        self._require_branch()
        branch = self.record()
        if branch is None:
            raise BranchError(
                f"branch {self.name} is not whole: its creation was broken off",
                hint=f"sk branch drop {self.name}",
            )
        return branch

    def size_bytes(self) -> int:
        """On the disk. What vanishes meanwhile does not count."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total

    # ---- whose turn it is

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises BranchError when another process has it, or there is no branch."""
        self._require_branch()
        with self._opened() as fd:
            deadline = time.monotonic() + LOCK_SECONDS_MAX  # who only looks has it for an instant
            while not _is_granted(fd, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise BranchError(
                        f"branch {self.name} is in use by another sk",
                        hint="It makes, starts, stops or drops it: wait until it has ended.",
                    )
                time.sleep(POLL_SECONDS)
            yield

    def is_locked(self) -> bool:
        """By another process."""
        with self._opened() as fd:
            return not _is_granted(fd, fcntl.LOCK_SH)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        with _errors(self.path, "open"):
            fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield fd
        finally:
            os.close(fd)

    # ---- how it comes and goes

    def begin(self) -> None:
        """It is there afterwards, and incomplete."""
        with _errors(self.path, "create"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir()
            except FileExistsError as error:
                raise self._exists() from error
            self.path.chmod(FOLDER_MODE)
            (self.path / MARKER).touch()

    def finish(self, branch: Branch) -> None:
        """It is whole from here on."""
        with _errors(self.path, "write"):
            shutil.rmtree(self.work)
            durable.replace_file(self.path / RECORD, branch.encode())
            (self.path / MARKER).unlink()

    def remove(self) -> None:
        """Its server is down."""
        self._require_branch()
        marker = self.path / MARKER
        with _errors(self.path, "remove"):
            if (self.path / RECORD).exists():
                (self.path / RECORD).rename(marker)
            for path in self.path.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                elif path != marker:
                    path.unlink()
            marker.unlink(missing_ok=True)
            self.path.rmdir()

    def _require_branch(self) -> None:
        if not self.is_branch():
            there = self.path.exists()
            raise BranchError(
                f"{self.path} is no branch's folder"
                if there
                else f"there is no branch {self.name}",
                hint="sk branch list shows those there are.",
            )

    def _exists(self) -> BranchError:
        if not self.is_branch():
            return BranchError(f"{self.path} exists, and is no branch's folder")
        if self.record() is not None:
            return BranchError(
                f"branch {self.name} exists", hint=f"sk branch drop {self.name} removes it."
            )
        if self.is_locked():
            return BranchError(f"branch {self.name} is being made, or dropped, by another sk")
        return BranchError(
            f"branch {self.name} is there, but not whole: its creation was broken off",
            hint=f"sk branch drop {self.name} removes what is left.",
        )


def branch_folders(branches_dir: Path) -> list[BranchFolder]:
    """By their names. Raises BranchError."""
    with _errors(branches_dir, "read"):
        try:
            names = sorted(os.listdir(branches_dir))
        except FileNotFoundError:
            return []
    found = [BranchFolder(branches_dir, name) for name in names if NAME.fullmatch(name)]
    return [folder for folder in found if folder.is_branch()]


def _is_granted(fd: int, mode: int) -> bool:
    try:
        fcntl.flock(fd, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _errors(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BranchError(f'could not {doing} "{path}": {error.strerror}') from error
