"""A segment from the archive in a file without a name: only the process that holds it can read it,
and it is removed when that process ends, for any reason.

Law: `read` returns the bytes that were written, or raises WalDamaged. Nothing is synced: after a
crash the segment is fetched again.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from quorum_wal.safekeeper.block_sums import BLOCK_BYTES, BlockSums
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.storage import durable


class UnpackedSegment:
    """Written once from `begin_lsn` on, then read. Not thread-safe."""

    def __init__(self, folder: Path, begin_lsn: int) -> None:
        """Creates the file on the disk of `folder`. Raises StorageError."""
        self._path = folder / "unpacked segment"  # for messages
        with durable.storage_errors(self._path, "create"):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._sums = BlockSums(begin_lsn)

    def write(self, piece: bytes) -> None:
        """Appends `piece`. Raises StorageError."""
        sums = self._sums
        durable.write_all(self._file.fileno(), piece, sums.end_lsn - sums.begin_lsn, self._path)
        sums.extend(piece)

    def read(self, lsn: int, length: int) -> bytes:
        """Up to `length` bytes at `lsn`; fewer only at the end. Raises WalDamaged, StorageError."""
        sums = self._sums
        begin_lsn = lsn - lsn % BLOCK_BYTES
        end_lsn = min(-(-(lsn + length) // BLOCK_BYTES) * BLOCK_BYTES, sums.end_lsn)
        with durable.storage_errors(self._path, "read"):
            data = os.pread(self._file.fileno(), end_lsn - begin_lsn, begin_lsn - sums.begin_lsn)
        if len(data) < end_lsn - begin_lsn:
            raise WalDamaged(begin_lsn + len(data), "it is missing")
        damaged_lsn = sums.find_damage(begin_lsn, memoryview(data), sums.end)
        if damaged_lsn is not None:
            raise WalDamaged(damaged_lsn, "its bytes are not the bytes that were written")
        return data[lsn - begin_lsn : lsn - begin_lsn + length]

    def close(self) -> None:
        """Removes the file."""
        self._file.close()
