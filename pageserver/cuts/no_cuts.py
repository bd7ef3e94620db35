"""The error of a reader that finds no cut in the archive."""

from __future__ import annotations

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.errors import PageNotFound


def no_cuts(objects: PageObjects) -> PageNotFound:
    """Reads the claims: a pageserver that has attached the timeline has one. Raises
    ObjectStoreError."""
    hint = "Cuts are made by a pageserver. Start it with sk pageserver run."
    if objects.claims_above(Suffix(0)):
        hint = (
            "A pageserver has attached the timeline, but its first cut is not finished. "
            "sk pageserver status shows what it waits for. If none runs: sk pageserver run."
        )
    return PageNotFound(f"the archive has no cuts of timeline {objects.keys.timeline}", hint=hint)
