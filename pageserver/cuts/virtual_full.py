"""A virtual full: a data directory at a cut, built from its frame, its layers and their base.

    frame        all other files        layers over the base     relation files, in the base's order

The result has the same bytes as a standby stopped at that cut. Bits of visibility maps may be
missing. Free space maps are omitted; VACUUM creates them again. A server started on it replays from
the cut's redo position. Pages of zeros are holes in the files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from quorum_wal.pageserver.cuts.cut_files import CutFile, CutFiles
from quorum_wal.pageserver.layers.fork import PAGE_BYTES
from quorum_wal.pageserver.layers.frame import FILE_MODE, Frame
from quorum_wal.storage import durable

#: minimum size of zeros that become a hole
HOLE_BYTES = 1 << 20


def write_virtual_full(
    data_dir: Path,
    frame: Frame,
    files: CutFiles,
    *,
    pg_major: int,
    give: Callable[[Path], None],
    progress: Callable[[int], None] = lambda length: None,
    written: Callable[[Path], None] = lambda path: None,
) -> None:
    """Writes into an empty folder; tablespaces become folders in pg_tblspc. `progress` receives
    byte counts, `written` each file. Raises PageserverError, ObjectStoreError, BackupError,
    StorageError."""
    frame.unpack(data_dir, give=give, written=written, with_kept=True)
    version_folder = frame.control_file().version_folder(pg_major)
    for oid in (*frame.tablespaces, None):
        for file in files.of_tablespace(oid):
            path = data_dir / file.fork.file(version_folder, file.segment)
            _write(path, file, progress)
            give(path)
            written(path)


def _write(path: Path, file: CutFile, progress: Callable[[int], None]) -> None:
    with durable.storage_errors(path, "write"):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    offset = 0
    try:
        for piece in file.pieces:
            for at in range(0, len(piece), HOLE_BYTES):
                part = piece[at : at + HOLE_BYTES]
                if np.frombuffer(part, np.uint8).any():
                    durable.write_all(fd, part, offset + at, path)
            offset += len(piece)
            progress(len(piece))
        assert offset == file.blocks * PAGE_BYTES
        with durable.storage_errors(path, "truncate"):
            os.ftruncate(fd, offset)
    finally:
        os.close(fd)
