"""Checks the layers and frames that the newest index of a timeline names: `sk archive verify`.

    newest index -> each object: it exists, its seal is whole, and its content has that checksum

Law: only "does not exist" and a wrong content count as damage. If the store fails, there is no
result. An index that a pageserver writes during the audit makes older objects garbage, which are
kept for `--grace-hours`; an object that is gone although a newer index does not name it is no
damage.

Imports only packages that every installation has, as `needed_wal.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from quorum_wal.backup.ordered_map import in_order
from quorum_wal.backup.retry import with_retries
from quorum_wal.backup.verify import Damage
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.sealed import SEAL, Seal, unseal_pieces
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.objects.page_index import FrameRef, LayerRef, PageIndex, decode_index
from quorum_wal.pageserver.objects.page_keys import INDICES, IndexName, PageKeys

THREADS = 8

Ref = LayerRef | FrameRef


class PageAudit:
    """Of the objects that the index named when the audit began. Raises ObjectStoreError if the
    store fails, or that index is damaged."""

    def __init__(self, store: ObjectStore, timeline: TimelineId) -> None:
        self._store = store
        self._keys = PageKeys(timeline)
        index = _newest_index(store, self._keys)
        self._refs: list[Ref] = [*index.layers, *index.frames]
        #: Number of objects, and their size before compression.
        self.objects = len(self._refs)
        self.content_bytes = sum(ref.size_bytes for ref in self._refs)

    def run(
        self, *, is_fast: bool, progress: Callable[[int], None] = lambda _: None
    ) -> tuple[Damage, ...]:
        """Reads all content, or with `is_fast` only the seals. `progress` gets the size of each
        object. Raises ObjectStoreError."""
        damaged = []
        with ThreadPoolExecutor(THREADS) as pool:
            check = partial(self._damage, is_fast=is_fast)
            for ref, reason in in_order(pool, check, self._refs, 2 * THREADS):
                if reason:
                    damaged.append((ref, Damage(self._keys.key(ref.name), reason)))
                progress(ref.size_bytes)
        named = _newest_index(self._store, self._keys).names if damaged else frozenset()
        return tuple(damage for ref, damage in damaged if ref.name in named)

    def _damage(self, ref: Ref, *, is_fast: bool) -> str:
        """The reason why the object is damaged, or ""."""
        key = self._keys.key(ref.name)
        try:
            seal = Seal.decode(with_retries(lambda: self._store.get_tail(key, SEAL.size)), key)
            if not is_fast:
                for _ in unseal_pieces(self._store.get_pieces(key), seal, key):
                    continue
        except (ObjectDamaged, ObjectNotFound) as error:
            return str(error)
        if seal.content_length != ref.size_bytes:
            return f"the object holds {seal.content_length} bytes, expected {ref.size_bytes}"
        return ""


def _newest_index(store: ObjectStore, keys: PageKeys) -> PageIndex:
    """An empty one if there is none."""
    while True:
        names = (keys.parse(info.key) for info in store.list(keys.prefix + INDICES))
        newest = max((name for name in names if isinstance(name, IndexName)), default=None)
        if newest is None:
            return PageIndex()
        try:
            return decode_index(store.get(keys.key(newest)), keys.key(newest))
        except ObjectNotFound:
            continue  # deleted after the listing, so a newer one exists
