"""From where on an archive's WAL is needed: by its backups, and by a pageserver's cuts.

    base backup    cut      cut      cut                     what holds the WAL
    |..............|--------|--------|--------->             every backup: from its start on
                   ^ redo of the oldest cut promised         an index whose horizon has moved: this
    ^ start                                                  an index that promises all: this

Laws. Each index that is there counts, whoever may choose it, and the least decides. The base below
the cuts of an index whose horizon has moved is kept for its pages alone. An index that cannot be
read says nothing: then it is not known what is needed, and that is an error. Between the reading
and what is done then, needs only shrink: a horizon never goes back.

Needs no package that not every installation has: `sk archive prune` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from backup.backup_catalog import BackupCatalog
from backup.backup_record import Backup
from objectstore.archive import TimelineArchive
from objectstore.errors import ObjectDamaged
from pageserver.cuts.named_bases import read_indices
from pageserver.errors import PageserverError
from pageserver.objects.page_index import PageIndex


@dataclass(frozen=True, slots=True)
class NeededWal:
    """The WAL from `lsn` on. `is_of_cuts`: a pageserver's cuts need it, no backup."""

    lsn: int
    is_of_cuts: bool

    @property
    def holder(self) -> str:
        """In words, of a sentence that goes on with `needs`."""
        return "the oldest cut of the pageserver" if self.is_of_cuts else "the oldest backup"


def needed_wal(archive: TimelineArchive) -> NeededWal | None:
    """None: there are neither backups nor cuts. Raises PageserverError when an index cannot be
    read, ObjectStoreError when the store does not answer."""
    try:
        indices = read_indices(archive.store, archive.timeline)
    except ObjectDamaged as error:
        raise PageserverError(
            f"it is not known which WAL the pageserver's cuts need: {error}",
            hint=error.hint
            or "Bring that object back, or delete it when a pageserver has written a newer one.",
        ) from error
    return oldest_needed(BackupCatalog(archive).backups(), indices)


def oldest_needed(backups: Sequence[Backup], indices: Iterable[PageIndex]) -> NeededWal | None:
    """Raises PageserverError when a base backup is missing that an index needs the WAL of."""
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
            f"base backup {index.base_backup_id}, below the cuts of the pageserver, is missing",
            hint="Without it they cannot be read; it is not known which WAL is needed.",
        ) from None
