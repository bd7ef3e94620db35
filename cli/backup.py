"""`sk backup`: create, list, verify, delete and prune the base backups in an archive."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import psycopg

from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.backup.base_backup import MANIFEST, BackupOptions
from quorum_wal.backup.create import BackedUpServer, BackupWatcher, archived_lsn, create_backup
from quorum_wal.backup.retention import kept_by_age, kept_by_number
from quorum_wal.backup.target import check_of_log, format_time
from quorum_wal.backup.unpack import Unpacking
from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.cut_backup import PAGESERVER, BackupSource, CutBackup, cut_target
from quorum_wal.cli.moment_text import MomentText
from quorum_wal.cli.output import CommandError, console, plain_table, print_json
from quorum_wal.cli.parameters import ByteSize, FiniteRange, json_option, timeline_option
from quorum_wal.cli.progress import ByteProgress
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import require_archive
from quorum_wal.objectstore.sealed import ZSTD_LEVEL
from quorum_wal.pageserver.cuts.named_bases import named_base_backups
from quorum_wal.pg_server.binaries import find_postgres
from quorum_wal.pg_server.program import run_program
from quorum_wal.pgclient.questions import identify_system
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.connection import converting_errors, open_connection
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

RATE_BYTES_MIN, RATE_BYTES_MAX = 32 << 10, 1 << 30  # as BASE_BACKUP's MAX_RATE
ARCHIVED_POLL_SECONDS = 0.5
VERIFY_SECONDS_MAX = 24 * 3600.0
#: Age at which an unfinished backup is removed. A younger one may still be running.
UNFINISHED_DAYS = 2


@click.group()
def backup() -> None:
    """Create, list, verify and remove base backups in the archive."""


def open_catalog(url: str, options: tuple[str, ...], timeline: TimelineId | None) -> BackupCatalog:
    """Raises ObjectStoreError, click.UsageError."""
    return BackupCatalog(require_archive(open_archive(url, options), timeline))


# ---- create


@backup.command()
@archive_options()
@timeline_option
@click.option(
    "--from",
    "source",
    type=BackupSource(),
    required=True,
    help="DSN of the primary or of one of its standbys (a role with REPLICATION), or the word "
    "pageserver, for a backup of its newest cut.",
)
@click.option(
    "--at", type=MomentText(), help='With --from pageserver: a time, or "10 minutes ago".'
)
@click.option("--at-lsn", metavar="LSN", help="With --from pageserver: a position in the WAL.")
@click.option("--label", default="sk", show_default=True, help="Label of the backup.")
@click.option(
    "--checkpoint",
    type=click.Choice(["fast", "spread"]),
    default="fast",
    show_default=True,
    help="fast: begin at once. spread: spread the checkpoint over minutes, with less load.",
)
@click.option("--max-rate", type=ByteSize(), default=0, help="Bytes per second; 32kB to 1GB.")
@click.option(
    "--compression",
    type=click.IntRange(0, 19),
    default=ZSTD_LEVEL,
    show_default=True,
    help="zstd compression level; 0: no compression.",
)
@click.option(
    "--no-wait", is_flag=True, help="Do not wait for the WAL of the backup to be archived."
)
@click.option(
    "--wait-timeout",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    default=600.0,
    show_default=True,
    help="How long to wait for the WAL to be archived.",
)
@json_option
def create(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    source: str,
    at: datetime | None,
    at_lsn: str | None,
    label: str,
    checkpoint: str,
    max_rate: int,
    compression: int,
    no_wait: bool,
    wait_timeout: float,
    json: bool,
) -> None:
    """Create a base backup of a running server, and print its name.

    With --from pageserver, no server is used: the backup is made of the newest cut, or of the cut
    that a restore to --at or --at-lsn would begin with.

    Waits until the archive alone can restore the backup, that is, until its WAL is archived too.
    Exits with 1 if pages of the server are damaged; such a backup is kept, but a restore never
    chooses it by itself.
    """
    if max_rate and not RATE_BYTES_MIN <= max_rate <= RATE_BYTES_MAX:
        raise click.UsageError("--max-rate must be between 32kB and 1GB")
    catalog = open_catalog(archive, archive_option, timeline)
    began_at = time.monotonic()
    if source == PAGESERVER:
        if max_rate or checkpoint != "fast":
            raise click.UsageError("--max-rate and --checkpoint exclude --from pageserver")
        made = CutBackup(cut_target(at, at_lsn), label, compression or None).create(catalog)
    else:
        if at is not None or at_lsn is not None:
            raise click.UsageError("--at and --at-lsn need --from pageserver")
        is_fast, rate_kb = checkpoint == "fast", max_rate // 1024
        options = BackupOptions(label=label, is_fast=is_fast, max_rate_kb=rate_kb)
        made = _create(PrimaryAddress(source), catalog, options, compression or None)
    seconds = time.monotonic() - began_at
    if json:
        print_json(backup_json(made))
    else:
        click.echo(made.backup_id)
    click.echo(
        f"{bytes_text(made.content_bytes)} in {seconds:.1f} s, stored as "
        f"{bytes_text(made.stored_bytes)}",
        err=True,
    )
    if not no_wait:
        _wait_archived(catalog, made, wait_timeout)
    if made.checksum_failures:
        raise CommandError(
            f"{len(made.checksum_failures)} damaged pages on the server: "
            f"{made.checksum_failures[0]}",
            "A restore uses this backup only with --backup. Run sk backup show to list the pages.",
        )


def _create(
    address: PrimaryAddress, catalog: BackupCatalog, options: BackupOptions, level: int | None
) -> Backup:
    with ByteProgress("base backup") as bar, closing(_replication(address)) as connection:

        def began(backup_id: str, estimated_bytes: int) -> None:
            click.echo(f"backup {backup_id} begins", err=True)
            bar.expect(estimated_bytes)

        return create_backup(
            connection,
            _read_server(address, connection),
            catalog,
            options,
            level=level,
            watcher=BackupWatcher(began, bar.at),
        )


def _replication(address: PrimaryAddress) -> psycopg.Connection:
    return open_connection(
        address.dsn, f"the server ({address})", replication="true", application_name="sk backup"
    )


def _read_server(address: PrimaryAddress, connection: psycopg.Connection) -> BackedUpServer:
    with converting_errors("could not identify the server"):
        system = identify_system(connection.pgconn)
    return BackedUpServer(
        system_id=system.system_id,
        pg_version=connection.info.server_version,
        is_standby=_ask(address, "SELECT pg_is_in_recovery()"),
        read_clock=lambda: _ask(address, "SELECT clock_timestamp()").astimezone(UTC),
    )


def _ask(address: PrimaryAddress, question: str) -> Any:
    """Opens a new connection each time, because one that idles for hours may be closed."""
    with closing(address.connect()) as connection:
        row = connection.execute(question).fetchone()
    assert row is not None
    return row[0]


def _wait_archived(catalog: BackupCatalog, made: Backup, timeout: float) -> None:
    deadline = time.monotonic() + timeout
    said = False
    while (lsn := archived_lsn(catalog.archive, made)) < made.stop_lsn:
        if not said:
            click.echo(f"waiting until WAL is archived up to {format_lsn(made.stop_lsn)}", err=True)
            said = True
        check_of_log(made, catalog.archive.newest_history())
        if time.monotonic() > deadline:
            raise CommandError(
                f"backup {made.backup_id} is complete, but needs WAL up to "
                f"{format_lsn(made.stop_lsn)}, and after {timeout:g} s the archive ends at "
                f"{format_lsn(lsn)}",
                "Until it is archived, a restore needs the safekeepers too. Run sk archive status.",
            )
        time.sleep(ARCHIVED_POLL_SECONDS)
    check_of_log(made, catalog.archive.newest_history())
    click.echo("the archive alone can restore it", err=True)


# ---- list, show


@backup.command("list")
@archive_options()
@timeline_option
@json_option
def list_backups(
    archive: str, archive_option: tuple[str, ...], timeline: TimelineId | None, json: bool
) -> None:
    """List the backups, oldest first."""
    catalog = open_catalog(archive, archive_option, timeline)
    backups = catalog.backups()
    if json:
        print_json([backup_json(each) for each in backups])
        return
    table = plain_table("backup", "stopped", "stop LSN", "size", "stored", "pages", "label")
    for each in backups:
        table.add_row(
            each.backup_id,
            f"{each.stopped_at:%Y-%m-%d %H:%M:%S}Z",
            format_lsn(each.stop_lsn),
            bytes_text(each.content_bytes),
            bytes_text(each.stored_bytes),
            f"{len(each.checksum_failures)} damaged" if each.checksum_failures else "sound",
            each.label,
        )
    console().print(table)
    for backup_id in catalog.unfinished():
        click.echo(f"{backup_id} is unfinished", err=True)


@backup.command()
@archive_options()
@timeline_option
@click.argument("backup_id")
@json_option
def show(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    backup_id: str,
    json: bool,
) -> None:
    """Show all details of one backup, and whether the archive alone can restore it."""
    catalog = open_catalog(archive, archive_option, timeline)
    found = catalog.get(backup_id)
    lsn = archived_lsn(catalog.archive, found)
    if json:
        print_json({**backup_json(found), "archived_lsn": format_lsn(lsn)})
        return
    facts = plain_table("", "")
    for name, value in backup_json(found).items():
        if not isinstance(value, list):
            facts.add_row(name, str(value))
    for each in found.archives:
        size = f"{bytes_text(each.content_bytes)}, stored as {bytes_text(each.stored_bytes)}"
        facts.add_row(each.name, f"{size} in {each.parts} parts {each.path}".rstrip())
    for failure in found.checksum_failures:
        facts.add_row("damaged", failure)
    missing = "" if lsn >= found.stop_lsn else ", so a restore needs the safekeepers too"
    facts.add_row("archived up to", format_lsn(lsn) + missing)
    console().print(facts)


def backup_json(each: Backup) -> dict[str, Any]:
    """LSNs as Postgres prints them, times in UTC."""
    return {
        "backup_id": each.backup_id,
        "label": each.label,
        "system_id": str(each.system_id),
        "pg_version": each.pg_version,
        "start_lsn": str(Lsn(each.start_lsn)),
        "start_tli": each.start_tli,
        "stop_lsn": str(Lsn(each.stop_lsn)),
        "stop_tli": each.stop_tli,
        "started_at": format_time(each.started_at),
        "stopped_at": format_time(each.stopped_at),
        "from_standby": each.from_standby,
        "content_bytes": each.content_bytes,
        "stored_bytes": each.stored_bytes,
        "tablespaces": [archive.path for archive in each.archives if archive.path],
        "checksum_failures": list(each.checksum_failures),
    }


# ---- verify


@backup.command()
@archive_options()
@timeline_option
@click.argument("backup_id")
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder to unpack it in, with room for all of it.  [default: the temporary folder]",
)
def verify(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    backup_id: str,
    work_dir: Path | None,
) -> None:
    """Unpack a backup, and compare it with its manifest by pg_verifybackup."""
    catalog = open_catalog(archive, archive_option, timeline)
    found = catalog.get(backup_id)
    program = find_postgres(found.pg_major).program("pg_verifybackup")
    folder = Path(tempfile.mkdtemp(prefix="sk-verify-", dir=work_dir))
    try:
        with ByteProgress("unpack", found.content_bytes) as bar:
            Unpacking(
                data_dir=folder / "data",
                tablespaces={a.path: folder / a.name for a in found.archives if a.path},
                is_synced=False,
                progress=bar.more,
            ).run(catalog, found)
        done = run_program(
            [program, "--no-parse-wal", "--exit-on-error", folder / "data"],
            timeout=VERIFY_SECONDS_MAX,
            check=False,
        )
    finally:
        shutil.rmtree(folder)
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no reason given"]
        raise CommandError(f"backup {backup_id} is damaged: {lines[0]}", "Create another one.")
    click.echo(f"{backup_id} matches its {MANIFEST}")


# ---- delete, prune


@backup.command()
@archive_options()
@timeline_option
@click.argument("backup_id")
@click.option("--yes", is_flag=True, help="Delete it even if it is the last undamaged one.")
def delete(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    backup_id: str,
    yes: bool,
) -> None:
    """Delete one backup, complete or unfinished. Its WAL is kept."""
    catalog = open_catalog(archive, archive_option, timeline)
    if backup_id not in catalog.unfinished():
        catalog.get(backup_id)
        if backup_id in _named_bases(catalog):
            raise CommandError(
                f"backup {backup_id} is the base of a pageserver's cuts: without it none of them "
                "can be read",
                "Keep this backup. See docs/pageserver.md.",
            )
        others = [b for b in catalog.backups() if b.backup_id != backup_id]
        if not yes and all(each.checksum_failures for each in others):
            raise CommandError(
                f"backup {backup_id} is the last undamaged one: without it nothing can be restored",
                "Create another one first, or give --yes.",
            )
    catalog.delete(backup_id)
    click.echo(f"{backup_id} is deleted")


def _named_bases(catalog: BackupCatalog) -> frozenset[str]:
    """The base backups of a pageserver's cuts."""
    return named_base_backups(catalog.archive.store, catalog.archive.timeline)


@backup.command()
@archive_options()
@timeline_option
@click.option("--keep", type=click.IntRange(1), metavar="N", help="Keep the newest N.")
@click.option(
    "--days",
    type=FiniteRange(min=0),
    metavar="D",
    help="Keep the backups that a restore to any moment of the last D days needs.",
)
@click.option("--dry-run", is_flag=True, help="List the backups; delete nothing.")
def prune(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    keep: int | None,
    days: float | None,
    dry_run: bool,
) -> None:
    """Delete old backups, and unfinished backups that are two days old.

    With both --keep and --days, keeps every backup that either of them keeps. The base of a
    pageserver's cuts is always kept. WAL is not removed; see sk archive prune.
    """
    if keep is None and days is None:
        raise click.UsageError("give --keep N, --days D, or both")
    catalog = open_catalog(archive, archive_option, timeline)
    backups, now = catalog.backups(), datetime.now(UTC)
    kept = kept_by_number(backups, keep) if keep is not None else []
    if days is not None:
        kept += kept_by_age(backups, days, now)
    kept_ids = {each.backup_id for each in kept} | _named_bases(catalog)
    doomed = [each.backup_id for each in backups if each.backup_id not in kept_ids]
    for backup_id in catalog.unfinished():
        if (now - catalog.written_at(backup_id)).days >= UNFINISHED_DAYS:
            doomed.append(backup_id)
    for backup_id in doomed:
        if not dry_run:
            catalog.delete(backup_id)
        click.echo(f"{backup_id} {'would be' if dry_run else 'is'} deleted")
    click.echo(f"{len(kept_ids)} backups are kept", err=True)
