"""The oldest WAL that an archive needs, for its backups and for a pageserver's cuts.

    base backup    cut      cut      cut                     needs the WAL from
    |..............|--------|--------|--------->             every backup: its start
                   ^ redo of the oldest promised cut         an index whose horizon has moved: this
    ^ start                                                  an index that promises all: this

Laws. Every index in the store counts, and the least position decides. The base backup of an index
whose horizon has moved is kept for its pages only. If an index cannot be read, the needed WAL is
unknown, which is an error. Between this check and the removal of WAL the need can only shrink,
because a horizon never moves back.

Imports only packages that every installation has: `sk archive prune` uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectDamaged
from quorum_wal.pageserver.cuts.named_bases import read_indices
from quorum_wal.pageserver.errors import PageserverError
from quorum_wal.pageserver.objects.page_index import PageIndex


@dataclass(frozen=True, slots=True)
class NeededWal:
    """The WAL from `lsn` on. `is_of_cuts`: cuts of a pageserver need it, not a backup."""

    lsn: int
    is_of_cuts: bool

    @property
    def holder(self) -> str:
        """The subject of a sentence whose verb is `needs`."""
        return "the oldest cut of the pageserver" if self.is_of_cuts else "the oldest backup"


def needed_wal(archive: TimelineArchive) -> NeededWal | None:
    """Returns None if there are neither backups nor cuts. Raises PageserverError if an index cannot
    be read, ObjectStoreError if the store is unavailable."""
    try:
        indices = read_indices(archive.store, archive.timeline)
    except ObjectDamaged as error:
        raise PageserverError(
            f"could not determine which WAL the pageserver's cuts need: {error}",
            hint=error.hint
            or "Restore that object. If a pageserver has written a newer index, delete it.",
        ) from error
    return oldest_needed(BackupCatalog(archive).backups(), indices)


def oldest_needed(backups: Sequence[Backup], indices: Iterable[PageIndex]) -> NeededWal | None:
    """Raises PageserverError if an index needs the WAL of a base backup that is missing."""
    start_lsns = {backup.backup_id: backup.start_lsn for backup in backups}
    found, bases = [], set[str]()
    for index in indices:
        if index.cuts:
            bases.add(index.base_backup_id)
            found.append(NeededWal(_begin_lsn(index, start_lsns), is_of_cuts=True))
    found += [
        NeededWal(lsn, is_of_cuts=False) for name, lsn in start_lsns.items() if name not in bases
    ]
    return min(found, key=lambda each: each.lsn, default=None)


def _begin_lsn(index: PageIndex, start_lsns: dict[str, int]) -> int:
    if index.horizon_lsn:
        return index.cuts[0].redo_lsn
    try:
        return start_lsns[index.base_backup_id]
    except KeyError:
        raise PageserverError(
            f"base backup {index.base_backup_id} of the pageserver's cuts is missing",
            hint="The cuts cannot be read without it, and the WAL that they need is unknown.",
        ) from None
