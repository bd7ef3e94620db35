"""`CutFiles`: all relation files at a cut as a stream. The base is read once, in stored order.

    16384.tar, base.tar    | file | file | file |  ..  files that are not in the base follow
    layers                   [p2]   [p1][p7]           replace pages of the base, newest first

Memory is bounded by some parts of the base, CHUNK_BLOCKS pages, and cached blocks of layers.
Law: files come in the order of the base, so the reader must not depend on their order.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass

import numpy as np

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, BackupArchive
from quorum_wal.backup.tar_members import members
from quorum_wal.backup.unpack import BASE, TABLESPACES
from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.backup_base import archive_reader
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork, parse_file
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.page_stack import IN_BASE, ZEROED, LayerStack, Owners
from quorum_wal.pageserver.layers.touches import Numbers

CHUNK_BLOCKS = 1024
ZEROS = memoryview(bytes(CHUNK_BLOCKS * PAGE_BYTES))


@dataclass(frozen=True, slots=True)
class CutFile:
    """Segment number `segment` (1 GiB each) of a fork. `pieces` together are `blocks` pages. Each
    piece is valid until the next one is read, and all until the next file is read."""

    fork: Fork
    segment: int
    blocks: int
    pieces: Iterator[memoryview]


class CutFiles:
    """`forks` and the oids of `tablespaces` are those of the cut; `layers` are those up to it.
    Every method raises ObjectStoreError, BackupError, PageserverError."""

    def __init__(
        self,
        catalog: BackupCatalog,
        backup: Backup,
        forks: ForkTable,
        tablespaces: Iterable[int],
        layers: LayerStack,
    ) -> None:
        self._catalog = catalog
        self._backup = backup
        self._forks = forks
        self._tablespaces = frozenset(tablespaces)
        self._layers = layers
        self._buffer = np.empty(CHUNK_BLOCKS * PAGE_BYTES, np.uint8)

    def of_tablespace(self, oid: int | None) -> Iterator[CutFile]:
        """All files below pg_tblspc/OID or, if `oid` is None, all files outside such folders."""
        wanted = {fork for fork in self._forks if self._own_tablespace(fork) == oid}
        done: set[tuple[Fork, int]] = set()
        if archive := self._stored(oid):
            folder = "" if oid is None else f"{TABLESPACES}/{oid}/"
            for fork, segment, base in self._base_files(archive, folder):
                if fork in wanted and segment <= self._forks[fork] // SEGMENT_BLOCKS:
                    done.add((fork, segment))
                    yield self._file(fork, segment, base)
        for fork in sorted(wanted):
            for segment in range(self._forks[fork] // SEGMENT_BLOCKS + 1):
                if (fork, segment) not in done:
                    yield self._file(fork, segment, _BaseFile())

    def _own_tablespace(self, fork: Fork) -> int | None:
        return fork.tablespace if fork.tablespace in self._tablespaces else None

    def _stored(self, oid: int | None) -> BackupArchive | None:
        name = BASE if oid is None else f"{oid}.tar"
        return next((each for each in self._backup.archives if each.name == name), None)

    def _base_files(
        self, archive: BackupArchive, folder: str
    ) -> Iterator[tuple[Fork, int, _BaseFile]]:
        with closing(archive_reader(self._catalog, self._backup, archive)) as reader:
            try:
                for member, content in members(reader):
                    found = parse_file(folder + member.name.removeprefix("./"))
                    if found is not None and member.isreg():
                        yield *found, _BaseFile(content, member.size)
            except tarfile.TarError as error:
                raise LayerDamaged(
                    f"{archive.name} of {self._backup.backup_id}: {error}"
                ) from error

    # ---- a file

    def _file(self, fork: Fork, segment: int, base: _BaseFile) -> CutFile:
        blocks = min(self._forks[fork] - segment * SEGMENT_BLOCKS, SEGMENT_BLOCKS)
        return CutFile(fork, segment, blocks, self._pieces(fork, segment, blocks, base))

    def _pieces(
        self, fork: Fork, segment: int, blocks: int, base: _BaseFile
    ) -> Iterator[memoryview]:
        first = segment * SEGMENT_BLOCKS
        owners = self._layers.owners(fork, first, blocks)
        for begin in range(0, blocks, CHUNK_BLOCKS):
            own = owners[begin : begin + CHUNK_BLOCKS]
            rest = len(own) * PAGE_BYTES
            if not (own == IN_BASE).all():
                yield self._composed(fork, first + begin, own, base)
                continue
            for piece in base.read(rest):
                yield piece
                rest -= len(piece)
            if rest:
                yield ZEROS[:rest]

    def _composed(self, fork: Fork, first: int, owners: Owners, base: _BaseFile) -> memoryview:
        """These pages, from the base and from layers."""
        data = self._buffer[: len(owners) * PAGE_BYTES]
        at = 0
        for piece in base.read(len(data)):
            data[at : at + len(piece)] = np.frombuffer(piece, np.uint8)
            at += len(piece)
        data[at:] = 0
        pages = data.reshape(-1, PAGE_BYTES)
        pages[owners == ZEROED] = 0
        for number in np.unique(owners[owners >= 0]).tolist():
            wanted: Numbers = (np.flatnonzero(owners == number) + first).astype(np.uint32)
            for blocks, run in self._layers.read(number, fork, wanted):
                places = blocks.astype(np.int64) - first
                pages[places] = np.frombuffer(run, np.uint8).reshape(-1, PAGE_BYTES)
        return data.data


class _BaseFile:
    """Pages of a file of the base, in order. A partial page at the end of the file is ignored."""

    def __init__(self, content: Iterable[memoryview] = (), size_bytes: int = 0) -> None:
        self._content = iter(content)
        self._left_bytes = size_bytes - size_bytes % PAGE_BYTES
        self._piece = memoryview(b"")

    def read(self, length: int) -> Iterator[memoryview]:
        """The next bytes; fewer at the end of the file."""
        length = min(length, self._left_bytes)
        self._left_bytes -= length
        while length:
            if not self._piece:
                piece = next(self._content, None)
                if piece is None:
                    return  # the archive ends here; archive_reader reports that error
                self._piece = piece
            piece, self._piece = self._piece[:length], self._piece[length:]
            length -= len(piece)
            yield piece
