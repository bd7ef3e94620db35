"""`ForkTable`: the length of every fork at a cut, in pages, without free space maps.

    packed: n x  tablespace u32 | database u32 | number u32 | kind u32 | blocks u32

Contains only what a standby has: of unlogged relations only the init fork.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import (
    PAGE_BYTES,
    SEGMENT_BLOCKS,
    Fork,
    ForkKind,
    database_path,
    parse_file,
)
from quorum_wal.pageserver.layers.touches import Database, Touches

_ROW = struct.Struct("<5I")


class ForkTable(dict[Fork, int]):
    """Length in pages by fork."""

    def pack(self) -> bytes:
        """Sorted by fork."""
        return b"".join(
            _ROW.pack(fork.tablespace, fork.database, fork.number, fork.kind, self[fork])
            for fork in sorted(self)
        )

    @classmethod
    def unpack(cls, data: bytes) -> ForkTable:
        """Raises LayerDamaged."""
        try:
            return cls(
                (Fork(tablespace, database, number, ForkKind(kind)), blocks)
                for tablespace, database, number, kind, blocks in _ROW.iter_unpack(data)
            )
        except (struct.error, ValueError) as error:
            raise LayerDamaged(f"a table of forks is damaged: {error}") from error

    def of_database(self, database: Database) -> list[Fork]:
        """Sorted by fork."""
        return sorted(
            fork
            for fork in self
            if (fork.tablespace, fork.database) == (database.tablespace, database.database)
        )

    def after(self, touches: Touches, data_dir: Path, version_folder: str) -> ForkTable:
        """The table at the end of an epoch that was replayed in `data_dir`. That directory contains
        only files that the epoch may have changed."""
        gone = {(*each,) for each in touches.dropped}
        spaces = set(touches.tablespaces_dropped)
        found = ForkTable(
            (fork, blocks)
            for fork, blocks in self.items()
            if (fork.tablespace, fork.database, fork.number) not in gone
            and Database(fork.tablespace, fork.database) not in touches.fresh_databases
            and fork.tablespace not in spaces
        )
        for fork in touches.forks():
            blocks = fork_blocks(data_dir, fork, version_folder)
            if blocks is not None:
                found[fork] = blocks
            else:
                found.pop(fork, None)
        for database in touches.fresh_databases:
            folder = data_dir / database_path(
                database.tablespace, database.database, version_folder
            )
            found.update(_lengths(data_dir, folder))
        return found


def fork_blocks(data_dir: Path, fork: Fork, version_folder: str) -> int | None:
    """The length on disk, or None if the fork has no file."""
    blocks = segment = 0
    while True:
        path = data_dir / fork.file(version_folder, segment)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return None if segment == 0 else blocks
        blocks += size // PAGE_BYTES
        if size < SEGMENT_BLOCKS * PAGE_BYTES:
            return blocks
        segment += 1


def read_fork_table(data_dir: Path) -> ForkTable:
    """The table of a full data directory. Follows the links of tablespaces."""
    found = ForkTable()
    for folder in relation_folders(data_dir):
        found.update(_lengths(data_dir, folder))
    return found


def relation_folders(data_dir: Path) -> Iterator[Path]:
    """The folders that contain relation files."""
    yield data_dir / "global"
    yield from sorted(path for path in (data_dir / "base").glob("*") if path.is_dir())
    yield from sorted(path for path in (data_dir / "pg_tblspc").glob("*/PG_*/*") if path.is_dir())


def relation_files(data_dir: Path, folder: Path) -> Iterable[tuple[Fork, int, Path]]:
    """(fork, segment number, path) of each file, including free space maps."""
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        found = parse_file(str(path.relative_to(data_dir)))
        if found is not None and path.is_file():
            yield *found, path


def _lengths(data_dir: Path, folder: Path) -> ForkTable:
    found = ForkTable()
    for fork, _, path in relation_files(data_dir, folder):
        if fork.kind is not ForkKind.FSM:
            found[fork] = found.get(fork, 0) + path.stat().st_size // PAGE_BYTES
    return found
