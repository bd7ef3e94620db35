"""The tombstone of a timeline's pages: it is created before anything goes, and stays for ever.

Needs no package that not every installation has: `sk restore` asks for it.
"""

from __future__ import annotations

from consensus.ids import TimelineId
from objectstore.errors import ObjectNotFound
from objectstore.sealed import seal
from objectstore.store import ObjectStore
from pageserver.objects.page_keys import PageKeys, TombstoneName


def create_tombstone(store: ObjectStore, timeline: TimelineId) -> None:
    """Or it was there. Raises ObjectStoreError."""
    store.create(PageKeys(timeline).key(TombstoneName()), seal(b"", None))


def has_tombstone(store: ObjectStore, timeline: TimelineId) -> bool:
    """Raises ObjectStoreError: then it is not known."""
    try:
        store.get_tail(PageKeys(timeline).key(TombstoneName()), 1)
    except ObjectNotFound:
        return False
    return True
