"""The indices that an archive has of a pageserver, and the base backups that their layers stand on:
without its base a pageserver's history cannot be read.

Needs no package that not every installation has: `sk backup delete` and `sk backup prune` ask it.
"""

from __future__ import annotations

from consensus.ids import TimelineId
from objectstore.errors import ObjectNotFound
from objectstore.store import ObjectStore
from pageserver.objects.page_index import PageIndex, decode_index
from pageserver.objects.page_keys import INDICES, IndexName, PageKeys


def named_base_backups(store: ObjectStore, timeline: TimelineId) -> frozenset[str]:
    """By any index that is there, old or new. Raises ObjectStoreError: then it is not known."""
    return frozenset(index.base_backup_id for index in read_indices(store, timeline)) - {""}


def read_indices(store: ObjectStore, timeline: TimelineId) -> list[PageIndex]:
    """All that are there, old and new. Raises ObjectStoreError: then it is not known."""
    keys = PageKeys(timeline)
    found = []
    for info in list(store.list(keys.prefix + INDICES)):
        if isinstance(keys.parse(info.key), IndexName):
            try:
                found.append(decode_index(store.get(info.key), info.key))
            except ObjectNotFound:
                continue  # replaced, and deleted since
    return found
