"""Reads a cut from the store: its frame, and the pages of its layers and of their base."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.errors import PageNotFound
from quorum_wal.pageserver.layers.backup_base import BackupBase
from quorum_wal.pageserver.layers.base_cache import cached_backup, stored_places
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.layers.layer_file import LayerPart
from quorum_wal.pageserver.layers.page_stack import Layer, LayerStack, PageStack
from quorum_wal.pageserver.layers.range_cache import RangeCache
from quorum_wal.pageserver.objects.page_index import Cut, LayerRef, PageIndex
from quorum_wal.pgwal.lsn import format_lsn

OPENING_THREADS = 8


def fetch_frame(objects: PageObjects, index: PageIndex, cut: Cut, path: Path) -> Frame:
    """Writes the frame to that file. Raises PageNotFound if the index names none, ObjectStoreError,
    LayerDamaged."""
    for ref in index.frames:
        if ref.end_lsn == cut.end_lsn:
            return objects.fetch_frame(ref, path)
    raise PageNotFound(f"the index does not name a frame of the cut at {format_lsn(cut.end_lsn)}")


def open_stack(
    archive: TimelineArchive, objects: PageObjects, index: PageIndex, cut: Cut, folder: Path
) -> PageStack:
    """`folder` caches the file positions of the base backup if the store does not have them. Raises
    BackupError, ObjectStoreError, LayerDamaged."""
    catalog = BackupCatalog(archive)
    backup = catalog.get(index.base_backup_id)
    files = stored_places(catalog, backup) or cached_backup(catalog, backup, folder)[0]
    refs = [ref for ref in index.layers if ref.end_lsn <= cut.end_lsn]
    return PageStack(BackupBase(catalog, backup, files), open_layers(objects, refs))


def open_files(
    archive: TimelineArchive, objects: PageObjects, index: PageIndex, cut: Cut, frame: Frame
) -> CutFiles:
    """For callers that read all files once. Raises BackupError, ObjectStoreError, LayerDamaged."""
    catalog = BackupCatalog(archive)
    refs = [ref for ref in index.layers if ref.end_lsn <= cut.end_lsn]
    layers = LayerStack(open_layers(objects, refs, objects.range_cache()))
    backup = catalog.get(index.base_backup_id)
    return CutFiles(catalog, backup, frame.forks, frame.tablespaces, layers)


def open_layers(
    objects: PageObjects, refs: list[LayerRef], ranges: RangeCache | None = None
) -> list[Layer]:
    """Oldest first. Opens several at a time, because each needs requests. Raises ObjectStoreError,
    LayerDamaged."""
    with ThreadPoolExecutor(OPENING_THREADS) as pool:
        opened = pool.map(lambda ref: objects.open_layer(ref, ranges=ranges), refs)
        return _layers(dict(zip(refs, opened, strict=True)))


class OpenLayers:
    """The layers of a changing index. Each is opened once, and dropped when it is merged away."""

    def __init__(self, objects: PageObjects) -> None:
        self._objects = objects
        self._parts: dict[LayerRef, LayerPart] = {}

    def of(self, index: PageIndex) -> list[Layer]:
        """Oldest first. Raises ObjectStoreError, LayerDamaged."""
        known = self._parts
        self._parts = {
            ref: known[ref] if ref in known else self._objects.open_layer(ref)
            for ref in index.layers
        }
        return _layers(self._parts)


def _layers(parts: Mapping[LayerRef, LayerPart]) -> list[Layer]:
    ordered = sorted(parts, key=lambda ref: (ref.end_lsn, ref.part))
    return [
        Layer([parts[ref] for ref in refs])
        for _, refs in groupby(ordered, key=lambda ref: ref.end_lsn)
    ]
