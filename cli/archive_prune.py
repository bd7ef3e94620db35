"""`sk archive prune`: remove the WAL that neither a backup nor a pageserver needs."""

from __future__ import annotations

import click

from quorum_wal.backup.archived_log import stored_wal
from quorum_wal.backup.prune import Pruning, plan_pruning
from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import timeline_option
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive, require_archive
from quorum_wal.pageserver.cuts.needed_wal import needed_wal
from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.telemetry.size import bytes_text


@click.command()
@archive_options()
@timeline_option
@click.option("--before", metavar="LSN", help="Remove only WAL that ends below it.")
@click.option("--keep-backups", is_flag=True, help="Remove WAL that no backup needs (the default).")
@click.option("--dry-run", is_flag=True, help="List the objects; remove nothing.")
def prune(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    before: str | None,
    keep_backups: bool,
    dry_run: bool,
) -> None:
    """Remove WAL that is no longer needed: segments below the oldest backup, and partial segments
    that a longer object has replaced.

    WAL that the oldest backup needs is never removed. To remove backups, use sk backup prune. With
    a pageserver, WAL that its oldest cut needs is kept; the base backup below its cuts needs none.
    """
    if before is not None and keep_backups:
        raise click.UsageError("give either --before LSN or --keep-backups")
    found = require_archive(open_archive(archive, archive_option), timeline)
    horizon_lsn = _horizon(found, None if before is None else _lsn(before))
    stored, history = list(stored_wal(found)), found.newest_history()
    pruning = plan_pruning(stored, history, horizon_lsn, found.facts.wal_seg_size)
    _check_end_stays(pruning, [each.wal.end_lsn for each in stored])
    for each in pruning.all:
        if dry_run:
            click.echo(each.info.key)
        else:
            found.store.delete(each.info.key)
    click.echo(_summary(pruning, dry_run=dry_run))


def _horizon(archive: TimelineArchive, before_lsn: int | None) -> int:
    """WAL that ends at or below this position may be removed.

    Raises CommandError if a backup or a pageserver needs WAL below it, or if there is neither a
    backup nor --before; PageserverError if it cannot be read what a pageserver needs."""
    needed = needed_wal(archive)
    if before_lsn is None:
        if needed is None:
            raise CommandError(
                "there is no backup, so it is unknown which WAL is needed",
                "Take one with sk backup create, or give --before LSN.",
            )
        return needed.lsn
    if needed is not None and before_lsn > needed.lsn:
        raise CommandError(
            f"{needed.holder} needs the WAL from {format_lsn(needed.lsn)}, "
            f"--before is {format_lsn(before_lsn)}",
            "It can be removed when it is older than the pageserver's --history-days."
            if needed.is_of_cuts
            else "Remove that backup first with sk backup delete.",
        )
    return before_lsn


def _check_end_stays(pruning: Pruning, ends: list[int]) -> None:
    """Raises CommandError: a safekeeper whose archive is empty would begin to archive in the middle
    of the log."""
    if ends and pruning.horizon_lsn >= max(ends):
        raise CommandError(
            f"the archive ends at {format_lsn(max(ends))}, --before is beyond it",
            "Give a lower position: the newest segment is always kept.",
        )


def _summary(pruning: Pruning, *, dry_run: bool) -> str:
    return (
        f"{'would remove' if dry_run else 'removed'} {len(pruning.below)} segments below "
        f"{format_lsn(pruning.horizon_lsn)} and {len(pruning.replaced)} replaced beginnings, "
        f"{bytes_text(pruning.stored_bytes)}"
    )


def _lsn(text: str) -> int:
    try:
        return int(Lsn.parse(text))
    except LsnSyntaxError as error:
        raise click.UsageError(f"--before: {error}") from error
