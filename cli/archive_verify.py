"""`sk archive verify`: check that the archived log can be replayed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from quorum_wal.backup.archived_log import ArchivedLog, archived_log
from quorum_wal.backup.verify import ArchiveAddress, Damage, Verdict, verify_fast
from quorum_wal.backup.verify import verify as verify_all
from quorum_wal.cli.archive_options import archive_options, open_archive, parse_options
from quorum_wal.cli.output import ExitCode, print_json
from quorum_wal.cli.parameters import json_option, timeline_option
from quorum_wal.cli.progress import ByteProgress
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive, require_archive
from quorum_wal.pageserver.cuts.needed_wal import needed_wal
from quorum_wal.pageserver.cuts.page_audit import PageAudit
from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.telemetry.size import bytes_text


@click.command()
@archive_options()
@timeline_option
@click.option(
    "--from", "from_lsn", metavar="LSN", help="Begin here, not at the oldest backup or cut."
)
@click.option("--to", "to_lsn", metavar="LSN", help="End here, not at the end of the archive.")
@click.option("--fast", is_flag=True, help="Check only that all objects exist, and their seals.")
@click.option(
    "--jobs",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of processes.  [default: one per processor]",
)
@json_option
@click.pass_context
def verify(
    context: click.Context,
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    from_lsn: str | None,
    to_lsn: str | None,
    fast: bool,
    jobs: int | None,
    json: bool,
) -> None:
    """Verify that the archived log can be replayed, from the oldest backup or cut of a pageserver
    to its end. Without a backup or cut, verify from the beginning of the timeline.

    Checks that no WAL is missing, that every object has the contents that were written, and that
    every record has a correct CRC and follows the previous one, across segments and Postgres
    timelines. Also checks the layers and frames of the pageserver's cuts. Reports each gap and each
    damaged object, and then exits with 1.
    """
    store = open_archive(archive, archive_option)
    found = require_archive(store, timeline)
    log = _log(found, _lsn(from_lsn, "--from"), _lsn(to_lsn, "--to"))
    seg_size = found.facts.wal_seg_size
    begun = time.monotonic()
    with ByteProgress("verifying", len(log.pieces) * seg_size) as bar:
        if fast:
            verdict = verify_fast(store, log, seg_size, bar.more)
        else:
            address = ArchiveAddress(
                archive, parse_options(archive_option), found.timeline, found.facts
            )
            verdict = verify_all(address, log, bar.more, jobs)
    seconds = time.monotonic() - begun
    audit = PageAudit(store, found.timeline)
    with ByteProgress("verifying pages", audit.content_bytes) as bar:
        damages = audit.run(is_fast=fast, progress=bar.more)
    if json:
        is_sound = verdict.is_sound and not damages
        pages = _pages_as_json(audit, damages)
        print_json(_as_json(found, verdict) | {"sound": is_sound, "pages": pages})
    else:
        _print(verdict, seconds, fast=fast)
        _print_pages(audit, damages, fast=fast)
    if damages or not verdict.is_sound:
        context.exit(ExitCode.FAILED)


def _log(archive: TimelineArchive, begin_lsn: int | None, end_lsn: int | None) -> ArchivedLog:
    if begin_lsn is None:
        needed = needed_wal(archive)
        begin_lsn = archive.facts.timeline_start_lsn if needed is None else needed.lsn
    return archived_log(archive, archive.newest_history(), begin_lsn, end_lsn)


def _print(verdict: Verdict, seconds: float, *, fast: bool) -> None:
    for gap in verdict.gaps:
        click.echo(f"gap: {gap}, {bytes_text(gap.end_lsn - gap.begin_lsn)}")
    _print_damages(verdict.damages)
    log = f"{format_lsn(verdict.begin_lsn)} to {format_lsn(verdict.end_lsn)}"
    objects = f"{verdict.objects} objects, {bytes_text(verdict.content_bytes)}"
    if verdict.is_sound:
        what = "is complete" if fast else "can be replayed"
        click.echo(f"sound: the log from {log} {what} ({objects}, {seconds:.1f} s)")
    else:
        click.echo(
            f"NOT SOUND: {len(verdict.gaps)} gaps and {len(verdict.damages)} damaged objects in "
            f"the log from {log} ({objects}, {seconds:.1f} s)"
        )


def _print_pages(audit: PageAudit, damages: Sequence[Damage], *, fast: bool) -> None:
    """Prints nothing if no pageserver has made pages."""
    if not audit.objects:
        return
    _print_damages(damages)
    objects = f"{audit.objects} objects of a pageserver, {bytes_text(audit.content_bytes)}"
    if damages:
        click.echo(
            f"NOT SOUND: {len(damages)} damaged objects of {objects}; restores that begin with a "
            "cut may fail\nhint: docs/pageserver.md, section A layer is lost or damaged"
        )
    else:
        click.echo(f"{'complete' if fast else 'sound'}: {objects}")


def _print_damages(damages: Sequence[Damage]) -> None:
    for damage in damages:
        # The reason often names the object already.
        named = damage.reason if damage.key in damage.reason else f"{damage.key}: {damage.reason}"
        click.echo(f"damaged: {named}")


def _pages_as_json(audit: PageAudit, damages: Sequence[Damage]) -> dict[str, Any]:
    return {
        "sound": not damages,
        "objects": audit.objects,
        "content_bytes": audit.content_bytes,
        "damaged": [{"key": each.key, "reason": each.reason} for each in damages],
    }


def _as_json(archive: TimelineArchive, verdict: Verdict) -> dict[str, Any]:
    return {
        "tenant_id": archive.timeline.tenant_id.hex(),
        "timeline_id": archive.timeline.timeline_id.hex(),
        "begin_lsn": format_lsn(verdict.begin_lsn),
        "end_lsn": format_lsn(verdict.end_lsn),
        "objects": verdict.objects,
        "content_bytes": verdict.content_bytes,
        "gaps": [
            {"begin_lsn": format_lsn(gap.begin_lsn), "end_lsn": format_lsn(gap.end_lsn)}
            for gap in verdict.gaps
        ],
        "damaged": [{"key": each.key, "reason": each.reason} for each in verdict.damages],
    }


def _lsn(text: str | None, option: str) -> int | None:
    try:
        return None if text is None else int(Lsn.parse(text))
    except LsnSyntaxError as error:
        raise click.UsageError(f"{option}: {error}") from error
