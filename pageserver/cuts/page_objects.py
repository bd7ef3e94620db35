"""The objects of one timeline's pages in the store: written once, read as a whole or by ranges.

    TENANT/TIMELINE/pages/...    names: page_keys.py     content: sealed; layers are compressed

Law: after a create, the object exists with exactly this content, or an error is raised. A request
that seemed to fail may have succeeded, so the seal of an existing object is compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.archive import check_present
from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.sealed import SEAL, Seal, SealedPieces, unseal_pieces
from quorum_wal.objectstore.store import ObjectInfo, ObjectStore
from quorum_wal.pageserver.cuts.tombstone import has_tombstone
from quorum_wal.pageserver.errors import PagesDeleted, PageserverError
from quorum_wal.pageserver.layers.frame import Frame, open_frame
from quorum_wal.pageserver.layers.layer_file import LayerPart
from quorum_wal.pageserver.layers.range_cache import RangeCache
from quorum_wal.pageserver.layers.read_ahead import ReadAhead
from quorum_wal.pageserver.objects.deletion_list import decode_claim, encode_claim
from quorum_wal.pageserver.objects.page_index import (
    FrameRef,
    LayerRef,
    PageIndex,
    decode_index,
    encode_index,
)
from quorum_wal.pageserver.objects.page_keys import (
    CLAIMS,
    INDICES,
    ClaimName,
    IndexName,
    PageKeys,
    PageName,
)

PIECE_BYTES = 1 << 20


class PageObjects:
    """Thread-safe. Every method raises ObjectStoreError."""

    def __init__(self, store: ObjectStore, timeline: TimelineId) -> None:
        self._store = store
        self.keys = PageKeys(timeline)

    def create_claim(self, suffix: Suffix, incarnation: str) -> str:
        """The incarnation in the claim: the given one if this call created the claim."""
        key = self.keys.key(ClaimName(suffix))
        if self._store.create(key, encode_claim(incarnation)):
            return incarnation
        return decode_claim(self._store.get(key), key)

    def indices(self) -> tuple[IndexName, ...]:
        """The names of all indices."""
        names = (self.keys.parse(info.key) for info in self._list(INDICES))
        return tuple(name for name in names if isinstance(name, IndexName))

    def is_deleted(self) -> bool:
        """Whether a tombstone exists."""
        return has_tombstone(self._store, self.keys.timeline)

    def claims_above(self, suffix: Suffix) -> tuple[Suffix, ...]:
        after = self.keys.key(ClaimName(suffix))
        infos = self._store.list(self.keys.prefix + CLAIMS, after)
        names = (self.keys.parse(info.key) for info in infos)
        return tuple(name.suffix for name in names if isinstance(name, ClaimName))

    def pages(self) -> dict[PageName, int]:
        """All but unknown objects, with modification times in ms of the store's clock."""
        found = {}
        for info in self._list(""):
            name = self.keys.parse(info.key)
            if name is not None:
                found[name] = int(info.modified_at.timestamp() * 1000)
        return found

    def index(self, name: IndexName) -> PageIndex | None:
        """Returns None if the index does not exist. Raises ObjectDamaged."""
        key = self.keys.key(name)
        try:
            return decode_index(self._store.get(key), key)
        except ObjectNotFound:
            return None

    def newest_index(self) -> PageIndex:
        """The newest of all indices, or an empty one if there is none. Raises ObjectDamaged,
        PagesDeleted."""
        name = max(self.indices(), default=None)
        if self.is_deleted():  # checked after listing: the tombstone precedes all deletions
            raise PagesDeleted(self.keys.timeline)
        found = self.index(name) if name is not None else None
        return found or PageIndex()

    def create_index(self, name: IndexName, index: PageIndex) -> None:
        """Raises PageserverError if the object exists with other content, ArchiveError if the store
        does not have the timeline's archive any more."""
        check_present(self._store, self.keys.timeline)
        key, data = self.keys.key(name), encode_index(index)
        if not self._store.create(key, data):
            self._check_same(key, Seal.decode(data, key))

    def upload(self, ref: LayerRef | FrameRef, path: Path) -> None:
        """Uploads a file. Frames are compressed here; pages in layers are compressed already.
        Raises PageserverError if the object exists with other content, ArchiveError if the store
        does not have the timeline's archive any more."""
        check_present(self._store, self.keys.timeline)
        key = self.keys.key(ref.name)
        level = None if isinstance(ref, LayerRef) else 3
        sealed = SealedPieces(lambda: _pieces(path), path.stat().st_size, level)
        if not self._store.create(key, sealed):
            self._check_same(key, sealed.seal())

    def open_layer(
        self,
        ref: LayerRef,
        read_ahead: ReadAhead | None = None,
        *,
        ranges: RangeCache | None = None,
    ) -> LayerPart:
        """`read_ahead` schedules layers that are read in parallel, each from start to end. `ranges`
        caches ranges for a caller that reads all forks in order. Raises LayerDamaged."""
        key = self.keys.key(ref.name)
        get_range = self._store.get_range if ranges is None else ranges.read

        def fetch(offset: int, length: int) -> bytes:
            return get_range(key, offset, length)

        if read_ahead is None:
            return LayerPart(key, ref.size_bytes, fetch)
        ahead = read_ahead.ahead(key, ref.size_bytes, fetch)
        return LayerPart(key, ref.size_bytes, ahead, partial(read_ahead.unpacked, key))

    def range_cache(self) -> RangeCache:
        """A cache for reading whole layers."""
        return RangeCache(self._store.get_range)

    def fetch_frame(self, ref: FrameRef, path: Path) -> Frame:
        """Writes the frame to that file. Raises LayerDamaged, ObjectDamaged."""
        key = self.keys.key(ref.name)
        found = Seal.decode(self._store.get_tail(key, SEAL.size), key)
        with path.open("wb") as file:
            for piece in unseal_pieces(self._store.get_pieces(key), found, key):
                file.write(piece)
        return open_frame(path)

    def _list(self, folder: str) -> Iterator[ObjectInfo]:
        return self._store.list(self.keys.prefix + folder)

    def _check_same(self, key: str, wanted: Seal) -> None:
        found = Seal.decode(self._store.get_tail(key, SEAL.size), key)
        if not found.is_same_content(wanted):
            raise PageserverError(
                f'object "{key}" exists with other content',
                hint="Two processes use the same generation. Run sk generations advance.",
            )


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
