"""A virtual full: a data directory at a cut, out of its frame, the layers and the base below them.

    frame        all that is no relation        layers over the base     files, in the base's order

It is what a standby that was stopped at that cut has, byte for byte (bits of visibility maps may be
missing; free-space maps are left out: VACUUM makes them anew). Started on it, a server replays from
the cut's redo on. Pages of zeros are holes in its files.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from pageserver.cuts.cut_files import CutFile, CutFiles
from pageserver.layers.fork import PAGE_BYTES
from pageserver.layers.frame import FILE_MODE, Frame
from storage import durable

#: of zeros that become a hole, at least
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
    """Into an empty folder; tablespaces become folders in pg_tblspc. `progress` hears of bytes,
    `written` of each file. Raises PageserverError, ObjectStoreError, BackupError, StorageError."""
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
