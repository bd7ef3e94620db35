"""`sk archive status` and `sk archive ls`: show the contents of an archive."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click

from quorum_wal.backup.archived_log import ArchivedLog, StoredWal, archived_log, stored_wal
from quorum_wal.backup.backup_catalog import BackupCatalog
from quorum_wal.backup.backup_record import Backup
from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.output import console, plain_table, print_json
from quorum_wal.cli.parameters import Dsn, Safekeepers, json_option, timeline_option, with_conninfo
from quorum_wal.cli.shared_option import shared_option
from quorum_wal.cli.status_tables import version_text
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import TimelineArchive, find_timelines
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.survey import any_timeline, follow, survey

# ---- status


@dataclass(frozen=True, slots=True)
class ArchiveStatus:
    """The archive of one timeline. `commit_lsn` is None unless a safekeeper reported it."""

    archive: TimelineArchive
    log: ArchivedLog
    objects: int
    stored_bytes: int
    newest_at: datetime | None
    backups: Sequence[Backup]
    commit_lsn: int | None

    @property
    def archived_lsn(self) -> int:
        """The end of the WAL that can be replayed from the beginning without a gap."""
        return self.log.gaps[0].begin_lsn if self.log.gaps else self.log.end_lsn

    def as_json(self) -> dict[str, Any]:
        facts, commit_lsn = self.archive.facts, self.commit_lsn
        behind = None if commit_lsn is None else max(0, commit_lsn - self.archived_lsn)
        return {
            "tenant_id": self.archive.timeline.tenant_id.hex(),
            "timeline_id": self.archive.timeline.timeline_id.hex(),
            "system_id": str(facts.system_id),
            "pg_version": facts.pg_version,
            "wal_seg_size": facts.wal_seg_size,
            "tli": self.log.history.tli,
            "timeline_start_lsn": format_lsn(facts.timeline_start_lsn),
            "begin_lsn": format_lsn(self.log.begin_lsn),
            "archived_lsn": format_lsn(self.archived_lsn),
            "newest_object_at": self.newest_at.isoformat() if self.newest_at else None,
            "objects": self.objects,
            "stored_bytes": self.stored_bytes,
            "gaps": len(self.log.gaps),
            "backups": len(self.backups),
            "newest_backup_at": max(
                (backup.stopped_at.isoformat() for backup in self.backups), default=None
            ),
            "commit_lsn": None if commit_lsn is None else format_lsn(commit_lsn),
            "behind_bytes": behind,
        }


@click.command()
@archive_options()
@timeline_option
@shared_option(
    "--safekeepers", "SK_SAFEKEEPERS", type=Safekeepers(), help="Ask these for the last commit."
)
@shared_option(
    "--safekeeper-conninfo",
    "SK_SAFEKEEPER_CONNINFO",
    type=Dsn(),
    default="",
    help="libpq settings for safekeeper connections: sslmode, user, passfile, ...",
)
@json_option
def status(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    safekeepers: tuple[SafekeeperAddress, ...] | None,
    safekeeper_conninfo: str,
    json: bool,
) -> None:
    """Show the archive of each timeline: its range of WAL, size, age, and number of backups.

    With --safekeepers, also show how far the archive is behind the last commit.
    """
    store = open_archive(archive, archive_option)
    committed = _commit_lsns(with_conninfo(safekeepers or (), safekeeper_conninfo))
    statuses = [_status(each, committed) for each in _archives(store, timeline)]
    if json:
        print_json([each.as_json() for each in statuses])
        return
    if not statuses:
        click.echo(f"archive {store.url} is empty")
        return
    table = plain_table(
        "timeline", "Postgres", "tli", "from", "archived to", "newest", "objects", "size",
        "backups", "behind", "",
    )  # fmt: skip
    for each in statuses:
        table.add_row(*_cells(each), style="red" if each.log.gaps else "")
    console().print(table)


def _archives(store: ObjectStore, wanted: TimelineId | None) -> list[TimelineArchive]:
    timelines = find_timelines(store) if wanted is None else [wanted]
    return [TimelineArchive.open(store, timeline) for timeline in timelines]


def _status(archive: TimelineArchive, committed: dict[TimelineId, int]) -> ArchiveStatus:
    stored = list(stored_wal(archive))
    backups = BackupCatalog(archive).backups()
    return ArchiveStatus(
        archive,
        archived_log(archive, archive.newest_history()),
        len(stored),
        sum(each.info.size_bytes for each in stored),
        max((each.info.modified_at for each in stored), default=None),
        backups,
        committed.get(archive.timeline),
    )


def _commit_lsns(addresses: tuple[SafekeeperAddress, ...]) -> dict[TimelineId, int]:
    """The greatest commit_lsn per timeline. Raises Unreachable if no safekeeper answers."""
    found: dict[TimelineId, int] = {}
    members = follow(survey(addresses), any_timeline)
    errors = [member.error for member in members if member.error is not None]
    if members and len(errors) == len(members):
        hint = next((error.hint for error in errors if error.hint), "")
        raise Unreachable(f"no safekeeper reports its commit_lsn: {errors[0]}", hint=hint)
    for member in members:
        for timeline, state in member.timelines.items():
            found[timeline] = max(found.get(timeline, 0), Lsn.parse(state["commit_lsn"]))
    return found


def _cells(status: ArchiveStatus) -> list[str]:
    log, commit_lsn = status.log, status.commit_lsn
    return [
        str(status.archive.timeline),
        version_text(status.archive.facts.pg_version),
        str(log.history.tli),
        format_lsn(log.begin_lsn),
        format_lsn(status.archived_lsn),
        _age(status.newest_at),
        str(status.objects),
        bytes_text(status.stored_bytes),
        str(len(status.backups)),
        "-" if commit_lsn is None else bytes_text(max(0, commit_lsn - status.archived_lsn)),
        f"{len(log.gaps)} GAPS: sk archive verify" if log.gaps else "",
    ]


def _age(moment: datetime | None) -> str:
    if moment is None:
        return "-"
    seconds = max(0.0, (datetime.now(UTC) - moment).total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


# ---- ls


@dataclass(frozen=True, slots=True)
class WalRange:
    """Objects of one Postgres timeline. Each begins where the previous one ends."""

    tli: int
    begin_lsn: int
    end_lsn: int
    objects: int
    stored_bytes: int
    newest_at: datetime


def wal_ranges(stored: Sequence[StoredWal], wal_seg_size: int) -> Iterator[WalRange]:
    """Joins contiguous objects into ranges. A range ends at the first partial segment."""
    current: WalRange | None = None
    for each in stored:
        wal, info = each.wal, each.info
        begin_lsn = wal.segno * wal_seg_size
        is_next = (
            current is not None
            and wal.tli == current.tli
            and begin_lsn == current.end_lsn
            and wal.end_lsn % wal_seg_size == 0
        )
        if current is not None and is_next:
            current = WalRange(
                wal.tli,
                current.begin_lsn,
                wal.end_lsn,
                current.objects + 1,
                current.stored_bytes + info.size_bytes,
                max(current.newest_at, info.modified_at),
            )
            continue
        if current is not None:
            yield current
        current = WalRange(wal.tli, begin_lsn, wal.end_lsn, 1, info.size_bytes, info.modified_at)
    if current is not None:
        yield current


@click.command("ls")
@archive_options()
@timeline_option
@click.option("--all", "show_all", is_flag=True, help="List every object instead of ranges.")
@json_option
def list_wal(
    archive: str,
    archive_option: tuple[str, ...],
    timeline: TimelineId | None,
    show_all: bool,
    json: bool,
) -> None:
    """List the WAL in the archive of each timeline, as ranges of the log."""
    found: list[dict[str, Any]] = []
    for each in _archives(open_archive(archive, archive_option), timeline):
        stored = list(stored_wal(each))
        seg_size = each.facts.wal_seg_size
        name = {
            "tenant_id": each.timeline.tenant_id.hex(),
            "timeline_id": each.timeline.timeline_id.hex(),
        }
        for run in [[s] for s in stored] if show_all else [stored]:
            for part in wal_ranges(run, seg_size):
                key = {"key": run[0].info.key} if show_all else {}
                found.append({**name, **key, **_range_json(part)})
    if json:
        print_json(found)
        return
    last = "key" if show_all else "timeline"
    table = plain_table("tli", "from", "to", "objects", "size", "newest", last)
    for row in found:
        name_text = row.get("key") or f"{row['tenant_id']}/{row['timeline_id']}"
        age = _age(datetime.fromisoformat(row["newest_object_at"]))
        table.add_row(
            str(row["tli"]), row["begin_lsn"], row["end_lsn"], str(row["objects"]),
            bytes_text(row["stored_bytes"]), age, name_text,
        )  # fmt: skip
    console().print(table)


def _range_json(part: WalRange) -> dict[str, Any]:
    return {
        "tli": part.tli,
        "begin_lsn": format_lsn(part.begin_lsn),
        "end_lsn": format_lsn(part.end_lsn),
        "objects": part.objects,
        "stored_bytes": part.stored_bytes,
        "newest_object_at": part.newest_at.isoformat(),
    }
