"""The cuts of a pageserver that `sk restore` may begin with, if the archive has any.

Imports no module of the pageserver for an archive without cuts. If the cuts cannot be used, prints
a warning, and the restore begins with a base backup.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.errors import BackupError
from quorum_wal.backup.restore_plan import RestorePlan, RestorePlanner
from quorum_wal.backup.target import AtLsn, AtTime, Target, format_time
from quorum_wal.backup.unpack import Unpacking
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound, ObjectStoreError
from quorum_wal.pageserver.cuts.tombstone import has_tombstone
from quorum_wal.pageserver.errors import LayerDamaged, PagesDeleted, PageserverError
from quorum_wal.pageserver.objects.page_keys import PageKeys
from quorum_wal.pgwal.lsn import format_lsn

if TYPE_CHECKING:  # needs packages that not every installation has
    from quorum_wal.pageserver.cuts.virtual_backups import VirtualBackups

NEEDED_PACKAGES = ("numpy", "numba", "pyarrow")


class RestorableCuts:
    """The cuts in the archive of one timeline. close() removes what was fetched of them."""

    def __init__(self, archive: TimelineArchive) -> None:
        self._archive = archive
        self._cuts: VirtualBackups | None = None
        self._ids: frozenset[str] = frozenset()

    def close(self) -> None:
        if self._cuts is not None:
            self._cuts.close()

    def plan(
        self, planner: RestorePlanner, backups: Sequence[Backup], target: Target
    ) -> RestorePlan:
        """A plan from the newest backup or cut before the target. Raises BackupError,
        ObjectStoreError, WalError; PagesDeleted if there is no base backup either."""
        cuts = self._backups(backups)
        # A backup made of a cut sorts after the cut: it is preferred, because it is read in one go.
        both = sorted([*cuts, *backups], key=lambda each: each.stop_lsn)
        try:
            plan = planner.plan(both, target)
        except BackupError as error:
            self._check_horizon(target, error)
            raise
        if self._cuts is not None and plan.backup.backup_id in self._ids:
            return replace(plan, backup=self._cuts.details(plan.backup))
        return plan

    def _check_horizon(self, target: Target, error: BackupError) -> None:
        """Raises a BackupError with the reason if the cuts before the target were removed."""
        horizon = self._cuts.horizon if self._cuts is not None else None
        if horizon is None:
            return
        at = datetime.fromtimestamp(horizon.time_unix_s, UTC)
        match target:
            case AtLsn(lsn) if lsn < horizon.end_lsn:
                pass
            case AtTime(time) if time < at:
                pass
            case _:
                return
        raise BackupError(
            f"the target {target} is before the horizon, below which cuts are removed, and {error}",
            hint=f"The oldest cut is at {format_lsn(horizon.end_lsn)}, {format_time(at)}. "
            "Cuts are kept for --history-days of sk pageserver run.",
        ) from error

    def writer(self, backup: Backup) -> Callable[[Backup, Unpacking], None] | None:
        """The function that writes a cut; None for a base backup."""
        cuts = self._cuts
        if cuts is None or backup.backup_id not in self._ids:
            return None

        def write(backup: Backup, unpacking: Unpacking) -> None:
            try:
                cuts.write(backup, unpacking)
            except (LayerDamaged, ObjectDamaged, ObjectNotFound) as error:
                raise PageserverError(
                    f"{backup.backup_id} cannot be restored: {error}",
                    hint=f'Empty "{unpacking.data_dir}", and begin with a base backup: --backup ID '
                    "of sk backup list. Then see docs/pageserver.md: a layer is lost or damaged.",
                ) from error

        return write

    def _backups(self, backups: Sequence[Backup]) -> list[Backup]:
        store, timeline = self._archive.store, self._archive.timeline
        if has_tombstone(store, timeline):
            if not backups:
                raise PagesDeleted(timeline)
            self._warn(str(PagesDeleted(timeline)))
            return []
        if not store.list_folders(PageKeys(timeline).prefix):
            return []
        missing = [name for name in NEEDED_PACKAGES if find_spec(name) is None]
        if missing:
            self._warn(f"{', '.join(missing)} not installed: pip install 'quorum-wal[pageserver]'")
            return []
        from quorum_wal.pageserver.cuts.virtual_backups import VirtualBackups

        try:
            self._cuts = VirtualBackups(self._archive, datetime.now(UTC))
            found = self._cuts.backups()
        except (ObjectStoreError, PageserverError) as error:
            self._warn(str(error))
            return []
        self._ids = frozenset(each.backup_id for each in found)
        return found

    def _warn(self, why: str) -> None:
        click.echo(f"WARNING: the pageserver's cuts cannot be used: {why}", err=True)
