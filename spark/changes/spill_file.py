"""`SpillFile`: bytes in a temporary file, if memory is too small.

The file is created by the first write, in the first of Spark's local folders, or else in that of
the operating system. It has no name, belongs to one process, and is deleted when it is closed or
when the process ends. Law: no write or read is shorter than asked for.
"""

from __future__ import annotations

import os
import tempfile
import weakref

from quorum_wal.spark.errors import SpillError

#: of one file
SPILL_BYTES_MAX = 256 << 30


class SpillFile:
    """`end` is the size of the file."""

    def __init__(self) -> None:
        self._fd: int | None = None
        self.end = 0

    def append(self, data: bytes | memoryview) -> int:
        """The offset of the data. Raises SpillError."""
        begin = self.end
        self.write(begin, data)
        return begin

    def write(self, at: int, data: bytes | memoryview) -> None:
        """Raises SpillError."""
        rest = memoryview(data)
        if not rest.nbytes:
            return
        rest, end = rest.cast("B"), at + rest.nbytes
        if end > SPILL_BYTES_MAX:
            raise SpillError(
                f"the changes of transactions that commit together have more than "
                f"{SPILL_BYTES_MAX} bytes",
                hint="Transactions of this size cannot be decoded.",
            )
        try:
            fd = self._opened()
            while rest:
                written = os.pwrite(fd, rest, at)
                at, rest = at + written, rest[written:]
        except OSError as error:
            raise SpillError(
                f"changes could not be written to a temporary file: {error}",
                hint="Provide disk space for temporary files of workers: spark.local.dir, or "
                "TMPDIR.",
            ) from error
        self.end = max(self.end, end)

    def read(self, at: int, length: int) -> bytes:
        """Raises SpillError."""
        data = bytearray(length)
        self.read_into(at, memoryview(data))
        return bytes(data)

    def read_into(self, at: int, target: memoryview) -> None:
        """Fills the target, of bytes. Raises SpillError."""
        end, rest = at + target.nbytes, target
        try:
            while rest:
                count = os.preadv(self._opened(), [rest], at)
                if not count:
                    raise SpillError(f"a temporary file ends at {at}, expected {end}")
                at, rest = at + count, rest[count:]
        except OSError as error:
            raise SpillError(f"a temporary file could not be read: {error}") from error

    def close(self) -> None:
        """Deletes the content."""
        if self._fd is not None:
            self._close()
        self._fd, self.end = None, 0

    def _opened(self) -> int:
        if self._fd is None:
            folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
            with tempfile.TemporaryFile(dir=folder if os.path.isdir(folder) else None) as file:
                self._fd = os.dup(file.fileno())
            #: also at the end of an owner that does not close it
            self._close = weakref.finalize(self, os.close, self._fd)
        return self._fd
