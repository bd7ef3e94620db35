"""`sk backup create --from pageserver`: a base backup of the newest cut before a moment.

Does not connect to a primary. Imports the packages of the pageserver only when a backup is created.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

import click

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.target import (
    AtLsn,
    AtTime,
    Latest,
    Target,
    format_time,
    is_before,
    is_of_log,
)
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import Dsn
from quorum_wal.cli.progress import ByteProgress
from quorum_wal.pageserver.cuts.tombstone import has_tombstone
from quorum_wal.pageserver.errors import PagesDeleted
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.lsn import Lsn, format_lsn

PAGESERVER = "pageserver"
NEEDED_PACKAGES = ("numpy", "numba", "pyarrow")


class BackupSource(Dsn):
    """The word `pageserver`, or a libpq connection string."""

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        return PAGESERVER if value == PAGESERVER else super().convert(value, param, ctx)


@dataclass(frozen=True, slots=True)
class CutBackup:
    """Chooses a cut, and stores it as a base backup with a label and a zstd level."""

    target: Target
    label: str
    level: int | None

    def create(self, catalog: BackupCatalog) -> Backup:
        """Raises CommandError, BackupError, ObjectStoreError, PageserverError."""
        missing = [name for name in NEEDED_PACKAGES if find_spec(name) is None]
        if missing:
            raise CommandError(
                f"a backup of a cut needs packages that are not installed: {', '.join(missing)}",
                "pip install 'quorum-wal[pageserver]'",
            )
        if has_tombstone(catalog.archive.store, catalog.archive.timeline):
            raise PagesDeleted(catalog.archive.timeline)
        from quorum_wal.pageserver.cuts.full_backup import create_full_backup, new_backup_id
        from quorum_wal.pageserver.cuts.virtual_backups import VirtualBackups

        cuts = VirtualBackups(catalog.archive, datetime.now(UTC))
        try:
            cut = self._choose(catalog, cuts.backups())
            backup_id = new_backup_id(catalog, cut)
            where = format_lsn(cut.stop_lsn)
            click.echo(f"backup {backup_id} of the cut at {where} begins", err=True)
            with ByteProgress("backup", cuts.details(cut).content_bytes) as bar:
                return create_full_backup(
                    catalog,
                    cut,
                    *cuts.open(cut),
                    label=self.label,
                    level=self.level,
                    progress=bar.more,
                )
        finally:
            cuts.close()

    def _choose(self, catalog: BackupCatalog, cuts: list[Backup]) -> Backup:
        """The cut that a restore to the target would begin with."""
        history = catalog.archive.newest_history()
        cuts = [cut for cut in cuts if is_of_log(cut, history)]
        if not cuts:
            from quorum_wal.pageserver.cuts.no_cuts import no_cuts
            from quorum_wal.pageserver.cuts.page_objects import PageObjects

            raise no_cuts(PageObjects(catalog.archive.store, catalog.archive.timeline))
        before = [cut for cut in cuts if is_before(cut, self.target)]
        if not before:
            oldest = cuts[0]
            raise CommandError(
                f"no cut is before {self.target}: the oldest ends at "
                f"{format_lsn(oldest.stop_lsn)}, {format_time(oldest.stopped_at)}",
                "Give a later moment, or none for the newest cut.",
            )
        return before[-1]


def cut_target(at: datetime | None, at_lsn: str | None) -> Target:
    """Raises click.UsageError."""
    if at is not None and at_lsn is not None:
        raise click.UsageError("--at and --at-lsn exclude each other")
    if at is not None:
        return AtTime(at)
    if at_lsn is None:
        return Latest()
    try:
        return AtLsn(int(Lsn.parse(at_lsn)))
    except WalError as error:
        raise click.UsageError(f"--at-lsn: {error}") from error
