"""The indices of a pageserver in an archive, and the base backups of their layers. Without its base
backup the history of a pageserver cannot be read.

Imports only packages that every installation has: `sk backup delete` and `sk backup prune` use it.
"""

from __future__ import annotations

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.objects.page_index import PageIndex, decode_index
from quorum_wal.pageserver.objects.page_keys import INDICES, IndexName, PageKeys


def named_base_backups(store: ObjectStore, timeline: TimelineId) -> frozenset[str]:
    """Named by any index, old or new. On ObjectStoreError the names are unknown."""
    return frozenset(index.base_backup_id for index in read_indices(store, timeline)) - {""}


def read_indices(store: ObjectStore, timeline: TimelineId) -> list[PageIndex]:
    """All indices, old and new. On ObjectStoreError they are unknown."""
    keys = PageKeys(timeline)
    found = []
    for info in list(store.list(keys.prefix + INDICES)):
        if isinstance(keys.parse(info.key), IndexName):
            try:
                found.append(decode_index(store.get(info.key), info.key))
            except ObjectNotFound:
                continue  # deleted after the listing, so a newer one exists
    return found
