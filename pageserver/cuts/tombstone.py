"""The tombstone of a timeline's pages. It is created before any page is deleted, and is permanent.

Imports only packages that every installation has: `sk restore` checks for it.
"""

from __future__ import annotations

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.objectstore.sealed import seal
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.objects.page_keys import PageKeys, TombstoneName


def create_tombstone(store: ObjectStore, timeline: TimelineId) -> None:
    """May be repeated. Raises ObjectStoreError."""
    store.create(PageKeys(timeline).key(TombstoneName()), seal(b"", None))


def has_tombstone(store: ObjectStore, timeline: TimelineId) -> bool:
    """On ObjectStoreError the answer is unknown."""
    try:
        store.get_tail(PageKeys(timeline).key(TombstoneName()), 1)
    except ObjectNotFound:
        return False
    return True
