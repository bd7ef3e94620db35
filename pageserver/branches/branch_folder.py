"""The folder of a branch: its files, its lock, its creation and removal.

    DIR/NAME/incomplete     created first and removed last: the branch is incomplete
            |-- work/       WAL and a frame, during creation
            |-- data/       the server's data directory
            |-- socket/     its socket, 0700
            `-- branch.json written when the branch is complete

Laws. A branch is complete if branch.json exists. A removal begins by renaming that file. A folder
that has neither file, and is not empty, is not a branch, and is never removed. A process locks the
folder before it changes it; the kernel releases the lock when the process ends.
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

from quorum_wal.pageserver.branches.branch_record import NAME, Branch, check_name, decode_branch
from quorum_wal.pageserver.errors import BranchError
from quorum_wal.storage import durable

RECORD, MARKER = "branch.json", "incomplete"
DATA, SOCKET, WORK = "data", "socket", "work"
#: No client can connect to a socket whose path does not fit into `sun_path`, see unix(7).
SOCKET_PATH_BYTES_MAX = 107
SOCKET_NAME_MAX = ".s.PGSQL.65535"
LOCK_SECONDS_MAX = 1.0
POLL_SECONDS = 0.02
FOLDER_MODE = 0o711  # the server's account must be able to traverse it


class BranchState(Enum):
    """The state of a branch's folder. BUSY: a process creates, starts, stops or removes it now."""

    RUNNING = "running"
    STOPPED = "stopped"
    BUSY = "busy"
    INCOMPLETE = "incomplete"


class BranchFolder:
    """DIR/NAME, which may not exist. Methods raise BranchError, StorageError."""

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
        """Whether the folder is a branch, complete or not."""
        with _errors(self.path, "read"):
            try:
                names = os.listdir(self.path)
            except (FileNotFoundError, NotADirectoryError):
                return False
        return not names or RECORD in names or MARKER in names

    def record(self) -> Branch | None:
        """Returns None if the branch is incomplete."""
        with _errors(self.path, "read"):
            try:
                data = (self.path / RECORD).read_bytes()
            except FileNotFoundError:
                return None
        return decode_branch(data)

    def require(self) -> Branch:
        """Returns the record. Raises BranchError if the branch is incomplete."""
        self._require_branch()
        branch = self.record()
        if branch is None:
            raise BranchError(
                f"branch {self.name} is incomplete: its creation was interrupted",
                hint=f"Remove it: sk branch drop {self.name}",
            )
        return branch

    def size_bytes(self) -> int:
        """Disk usage. Files removed in the meantime are not counted."""
        total = 0
        for folder, _, names in os.walk(self.path):
            for name in names:
                try:
                    total += os.lstat(os.path.join(folder, name)).st_blocks * 512
                except FileNotFoundError:
                    continue
        return total

    # ---- lock

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Raises BranchError if another process holds the lock, or if the branch does not exist."""
        self._require_branch()
        with self._opened() as fd:
            deadline = time.monotonic() + LOCK_SECONDS_MAX  # is_locked() holds it for an instant
            while not _is_granted(fd, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    raise BranchError(
                        f"branch {self.name} is in use by another sk process",
                        hint="It creates, starts, stops or drops the branch. Wait until it ends.",
                    )
                time.sleep(POLL_SECONDS)
            yield

    def is_locked(self) -> bool:
        """Whether another process holds the lock."""
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

    # ---- creation and removal

    def begin(self) -> None:
        """Creates the folder, marked as incomplete."""
        socket_bytes = len(os.fsencode(self.socket / SOCKET_NAME_MAX))
        if socket_bytes > SOCKET_PATH_BYTES_MAX:
            raise BranchError(
                f"the path of the socket of branch {self.name} is too long: expected at most "
                f"{SOCKET_PATH_BYTES_MAX} bytes, got {socket_bytes}",
                hint="Specify a folder with a shorter path with --branches-dir.",
            )
        with _errors(self.path, "create"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self.path.mkdir()
            except FileExistsError as error:
                raise self._exists() from error
            self.path.chmod(FOLDER_MODE)
            (self.path / MARKER).touch()

    def finish(self, branch: Branch) -> None:
        """Marks the branch as complete."""
        with _errors(self.path, "write"):
            shutil.rmtree(self.work)
            durable.replace_file(self.path / RECORD, branch.encode())
            (self.path / MARKER).unlink()

    def remove(self) -> None:
        """Removes the folder. The server must be stopped."""
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
            exists = self.path.exists()
            raise BranchError(
                f'"{self.path}" is not the folder of a branch'
                if exists
                else f"branch {self.name} does not exist",
                hint="Use sk branch list to see all branches.",
            )

    def _exists(self) -> BranchError:
        if not self.is_branch():
            return BranchError(f'"{self.path}" exists and is not the folder of a branch')
        if self.record() is not None:
            return BranchError(
                f"branch {self.name} already exists",
                hint=f"Remove it: sk branch drop {self.name}",
            )
        if self.is_locked():
            return BranchError(
                f"branch {self.name} is being created or dropped by another sk process"
            )
        return BranchError(
            f"branch {self.name} already exists, but is incomplete: its creation was interrupted",
            hint=f"Remove it: sk branch drop {self.name}",
        )


def branch_folders(branches_dir: Path) -> list[BranchFolder]:
    """All branches, ordered by name. Raises BranchError."""
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
