"""The base backups that layers stand on: without its base a pageserver's history cannot be read.

Needs no package that not every installation has: `sk backup delete` and `sk backup prune` ask it.
"""

from __future__ import annotations

from consensus.ids import TimelineId
from objectstore.errors import ObjectNotFound
from objectstore.store import ObjectStore
from pageserver.page_index import decode_index
from pageserver.page_keys import INDICES, IndexName, PageKeys


def named_base_backups(store: ObjectStore, timeline: TimelineId) -> frozenset[str]:
    """By any index that is there, old or new. Raises ObjectStoreError: then it is not known."""
    keys = PageKeys(timeline)
    found = set()
    for info in list(store.list(keys.prefix + INDICES)):
        if isinstance(keys.parse(info.key), IndexName):
            try:
                found.add(decode_index(store.get(info.key), info.key).base_backup_id)
            except ObjectNotFound:
                continue  # replaced, and deleted since
    return frozenset(found - {""})
