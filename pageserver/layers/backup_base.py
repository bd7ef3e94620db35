"""`BackupBase`: the pages of a base backup in the archive, as the base of a page stack.

    base.tar, 16384.tar:  | header | file | header | file | ..     cut into parts of PART_BYTES
                                   ^ offset: determines the part of each page

The archives are read once, from start to end. This finds the position of every relation file, and
copies all other files into the first frame. Afterwards reading a page fetches one part; recently
used parts are cached.
"""

from __future__ import annotations

import tarfile
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import msgspec

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup, BackupArchive
from quorum_wal.backup.base_backup import MANIFEST
from quorum_wal.backup.parts import PART_BYTES, PartReader
from quorum_wal.backup.unpack import BASE
from quorum_wal.objectstore.sealed import unseal
from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork, ForkKind, parse_file
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.frame import AUTO_CONF, Frame, FrameWriter
from quorum_wal.pageserver.layers.page_run import Run, consecutive
from quorum_wal.pageserver.layers.touches import Numbers

#: Defines where recovery begins and when it is consistent. So the first cut is after the backup.
BACKUP_LABEL = "backup_label"
#: Cached uncompressed parts. If pages are read in order, each part is fetched once.
PARTS_KEPT = 4


class FilePlace(msgspec.Struct, frozen=True, array_like=True):
    """The position of a file; `archive` is the number of its archive in the backup."""

    archive: int
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class BackupFiles:
    """The position of every relation file, by fork and segment."""

    places: dict[tuple[Fork, int], FilePlace]

    def forks(self) -> ForkTable:
        """The fork lengths, without free space maps."""
        found = ForkTable()
        for (fork, _), place in self.places.items():
            if fork.kind is not ForkKind.FSM:
                found[fork] = found.get(fork, 0) + place.length // PAGE_BYTES
        return found


def read_backup(catalog: BackupCatalog, backup: Backup, frame: Path) -> tuple[BackupFiles, Frame]:
    """Reads all archives once. Raises BackupError, ObjectStoreError, LayerDamaged."""
    places: dict[tuple[Fork, int], FilePlace] = {}
    tablespaces: dict[int, str] = {}
    with FrameWriter(frame) as writer:
        for number, archive in enumerate(backup.archives):
            if archive.name == MANIFEST:
                continue
            folder = ""
            if archive.name != BASE:
                oid = archive.name.removesuffix(".tar")
                tablespaces[int(oid)] = archive.path
                folder = f"pg_tblspc/{oid}/"
                writer.add_folder(folder.rstrip("/"))
            for member, path, content in _members(catalog, backup, archive, folder):
                found = parse_file(path)
                if found is not None:
                    places[found] = FilePlace(number, member.offset_data, member.size)
                elif member.isdir():
                    writer.add_folder(path)
                elif member.isreg():
                    writer.add(path, content(), always=path in (BACKUP_LABEL, AUTO_CONF))
        files = BackupFiles(places)
        return files, writer.finish(files.forks(), tablespaces)


def _members(
    catalog: BackupCatalog, backup: Backup, archive: BackupArchive, folder: str
) -> Iterator[tuple[tarfile.TarInfo, str, Content]]:
    """The members of one archive: (member, path below the data directory, how to read it)."""
    with closing(archive_reader(catalog, backup, archive)) as reader:
        try:
            with tarfile.open(fileobj=reader, mode="r|") as tar:
                for member in tar:
                    path = folder + member.name.removeprefix("./").rstrip("/")
                    yield member, path, Content(tar, member)
        except tarfile.TarError as error:
            raise LayerDamaged(f"{archive.name} of {backup.backup_id}: {error}") from error


@dataclass(frozen=True, slots=True)
class Content:
    """Reads a member. Valid only until the next member of the archive is read."""

    tar: tarfile.TarFile
    member: tarfile.TarInfo

    def __call__(self) -> bytes:
        file = self.tar.extractfile(self.member)
        assert file is not None
        return file.read()


def archive_reader(catalog: BackupCatalog, backup: Backup, archive: BackupArchive) -> PartReader:
    """A reader for the whole archive. The caller closes it."""
    return PartReader(
        catalog.archive.store,
        lambda name, number: catalog.part_key(backup.backup_id, name, number),
        archive,
    )


class BackupBase:
    """For use by one thread. Raises ObjectStoreError if a part is missing or damaged."""

    def __init__(self, catalog: BackupCatalog, backup: Backup, files: BackupFiles) -> None:
        self._catalog = catalog
        self._backup = backup
        self._files = files
        self._kept: OrderedDict[str, bytes] = OrderedDict()

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Yields the blocks that the backup contains completely."""
        for at, first, count in consecutive(blocks):
            segment, position = divmod(first, SEGMENT_BLOCKS)
            place = self._files.places.get((fork, segment))
            if place is not None:
                count = min(count, place.length // PAGE_BYTES - position)
            if place is not None and count > 0:
                offset = place.offset + position * PAGE_BYTES
                data = self._content(place.archive, offset, count * PAGE_BYTES)
                yield blocks[at : at + count], data

    def _content(self, number: int, offset: int, length: int) -> memoryview:
        archive = self._backup.archives[number]
        pieces = []
        while length:
            part, begin = divmod(offset, PART_BYTES)
            piece = memoryview(self._part(archive, part + 1))[begin : begin + length]
            if not piece:
                raise LayerDamaged(f"{archive.name} of {self._backup.backup_id} is too short")
            pieces.append(piece)
            offset, length = offset + len(piece), length - len(piece)
        return pieces[0] if len(pieces) == 1 else memoryview(b"".join(pieces))

    def _part(self, archive: BackupArchive, number: int) -> bytes:
        key = self._catalog.part_key(self._backup.backup_id, archive.name, number)
        content = self._kept.pop(key, None)
        if content is None:
            content = unseal(self._catalog.archive.store.get(key), key)
        self._kept[key] = content
        if len(self._kept) > PARTS_KEPT:
            self._kept.popitem(last=False)
        return content
