"""`SmallDisk`: a file system of a given size, which a test can fill up.

    with SmallDisk(tmp_path / "disk", 64 << 20) as disk:
        safekeeper = SafekeeperProcess(1, disk.path / "safekeeper")
        ...
        disk.fill()   # from now on: No space left on device
        disk.free()

It is a tmpfs, so it needs the right to mount. It has no disk, so fsync always succeeds (see
failing_disk.py for failures).
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import TracebackType
from typing import Self

from quorum_wal.pg_server.errors import ProgramFailed, Unavailable
from quorum_wal.pg_server.program import run_program

FILLER_NAME = "filler"
FILLER_STEP_BYTES_MAX = 1 << 20


class SmallDisk:
    """A context manager: mounted at `path` within the block. Raises Unavailable."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        options = f"size={self.size_bytes},mode=0777"
        try:
            run_program(["mount", "-t", "tmpfs", "-o", options, "pg_fixtures", self.path])
        except ProgramFailed as error:
            raise Unavailable(
                f"a small file system cannot be mounted here: {error}",
                hint="run as root, in a container with CAP_SYS_ADMIN",
            ) from error
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # --lazy: if a process still uses it, it exists, without a name, until that process ends.
        run_program(["umount", "--lazy", self.path])

    @property
    def free_bytes(self) -> int:
        """The number of bytes that can still be written."""
        usage = os.statvfs(self.path)
        return usage.f_bavail * usage.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Allocates the free space except `leave_bytes` (rounded down to pages)."""
        with open(self.path / FILLER_NAME, "ab") as filler:
            while (wanted := self.free_bytes - leave_bytes) > 0:
                step = min(wanted, FILLER_STEP_BYTES_MAX)
                try:
                    os.posix_fallocate(filler.fileno(), filler.seek(0, os.SEEK_END), step)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return  # another process took the rest: the disk is full

    def free(self) -> None:
        """Frees the space that fill() took."""
        (self.path / FILLER_NAME).unlink(missing_ok=True)
