"""`sk page repair`."""

from __future__ import annotations

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.moment_options import binaries_of, replay_options, wal_sources
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.page_get import FilePath
from quorum_wal.cli.parameters import live_safekeepers_option, timeline_option
from quorum_wal.objectstore.archive import require_archive
from quorum_wal.pageserver.checks.directory_check import DataDirectory
from quorum_wal.pageserver.checks.page_comparison import differing
from quorum_wal.pageserver.checks.page_repair import (
    PageRepair,
    Repair,
    check_stopped,
    differing_headers,
)
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.pitr.page_at import PageReader
from quorum_wal.pageserver.pitr.restore_points import point_opener
from quorum_wal.pg_server.account import server_account
from quorum_wal.pgwal.lsn import format_lsn

DIFFERENCES_MAX = 8
WORD = "write"


@click.command()
@archive_options()
@timeline_option
@live_safekeepers_option
@click.argument("pgdata", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("path", metavar="FILE", type=FilePath())
@click.argument("block", type=click.IntRange(0, (1 << 32) - 2))
@click.option("--dry-run", is_flag=True, help="Show what differs; write nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@replay_options
def repair(**options: Any) -> None:
    """Write a page, as made from the WAL, into a file of a stopped server.

    FILE is the file as printed by pg_relation_filepath(). The page is written as of the server's
    last checkpoint; later WAL is replayed when the server starts. The old page is kept in
    page-repair/ in the data directory. See docs/pageserver.md.
    """
    pgdata, fork, block = options["pgdata"].absolute(), options["path"], options["block"]
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    check_stopped(pgdata)
    directory = DataDirectory.open(pgdata, archive.facts.server, archive.newest_history())
    page_repair = PageRepair(directory)
    server = RedoServer(binaries_of(archive, options["pg_bin"]), server_account())
    with tempfile.TemporaryDirectory(prefix="sk-repair-", dir=options["work_dir"]) as work:
        replay_dir = Path(work) / "server"
        replay_dir.mkdir()
        sources = wal_sources(archive, options)
        opener = point_opener(archive, sources, Path(work), page=(fork, block))
        found = page_repair.plan(opener, PageReader(replay_dir, server), fork, block)
    for line in _described(found):
        click.echo(line)
    if options["dry_run"] or not _is_needed(found):
        return
    if not options["yes"]:
        _confirm()
    kept = page_repair.write(found, datetime.now(UTC))
    click.echo(
        f"written: block {block} of {found.path}"
        + (f"; the old page is in {kept}" if kept is not None else "")
    )


def _is_needed(found: Repair) -> bool:
    """Raises CommandError if it is not certain whether the page is damaged."""
    if found.is_newer:
        raise CommandError(
            "the page is newer than the server's last checkpoint, and its checksum is right or "
            "there is none: nothing was written",
            "Start the server, which replays the later WAL, and then run sk page check.",
        )
    return bool(found.damage)


def _described(found: Repair) -> list[str]:
    name, at = f"block {found.block} of {found.path}", format_lsn(found.at_lsn)
    if not found.damage:
        what = "is newer than" if found.is_newer else "matches the WAL as of"
        return [f"{name} {what} the server's last checkpoint, {at}"]
    lines = [f"{name} is damaged: {found.damage}", f"the good page is as of {at}"]
    if found.found is None:
        return lines
    fields = differing_headers(found.found, found.good)
    for field, (there, good) in fields.items():
        show = format_lsn if field == "lsn" else str
        lines.append(f"  {field.replace('_', ' '):15} {show(there)}, good: {show(good)}")
    count, first = differing(found.found, found.good)
    end = min(first + DIFFERENCES_MAX, len(found.good))
    lines.append(
        f"  {count} bytes differ, the first at {first}: "
        f"{found.found[first:end].hex()}, good: {found.good[first:end].hex()}"
    )
    return lines


def _confirm() -> None:
    """Raises CommandError unless the word is typed."""
    try:
        typed = click.prompt(f'Type "{WORD}" to write it', err=True)
    except click.Abort:
        click.echo(err=True)
        typed = ""
    if typed.strip() != WORD:
        raise CommandError("not confirmed, nothing was written", f'Type "{WORD}", or give --yes.')
