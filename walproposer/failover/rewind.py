"""Whether a deposed primary can become a standby by pg_rewind, and the settings it needs then.
Pure.

pg_rewind copies the pages that differ between the two servers since their logs diverged. It finds
them in the old server's WAL, which has all of them only if hint bits are logged too: with data
checksums, or wal_log_hints. Sources: Postgres `pg_rewind.c`, `pg_controldata.c`, `guc-file.l`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from quorum_wal.pgwal.errors import SegmentNameError, WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.page import parse_page_header
from quorum_wal.pgwal.segment import SegmentName, parse_segment_name, segment_start_lsn, segno_of
from quorum_wal.walproposer.failover.promotion import Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlData:
    """From pg_controldata. `checkpoint_tli` is the timeline of the last checkpoint, `redo_lsn` the
    position where recovery begins, `recovery_tli` the timeline that recovery must reach at least, 0
    for a server that was not in recovery."""

    system_id: int
    has_checksums: bool
    has_wal_log_hints: bool
    checkpoint_tli: int
    redo_lsn: int
    recovery_tli: int

    @classmethod
    def parse(cls, text: str) -> ControlData:
        """Parse the output of pg_controldata in the C locale. Raises ValueError."""
        pairs = (line.partition(":") for line in text.splitlines())
        values = {name.strip(): value.strip() for name, _, value in pairs}
        try:
            return cls(
                system_id=int(values["Database system identifier"]),
                has_checksums=int(values["Data page checksum version"]) != 0,
                has_wal_log_hints=values["wal_log_hints setting"] == "on",
                checkpoint_tli=int(values["Latest checkpoint's TimeLineID"]),
                redo_lsn=int(Lsn.parse(values["Latest checkpoint's REDO location"])),
                recovery_tli=int(values["Min recovery ending loc's timeline"]),
            )
        except WalError as error:
            raise ValueError(f"pg_controldata shows {error}") from error
        except KeyError as error:
            raise ValueError(f"pg_controldata does not show {error}") from error


def rewind_problem(control: ControlData, system_id: int, base_backup: str) -> Problem | None:
    """Why pg_rewind cannot be used; `base_backup` is the hint with the alternative."""
    if control.system_id != system_id:
        return Problem(
            f"the data directory belongs to system {control.system_id}, "
            f"the new primary is system {system_id}",
            "These are two different clusters. Use a base backup of the new primary.",
        )
    if not control.has_checksums and not control.has_wal_log_hints:
        return Problem(
            "the old primary had neither data checksums nor wal_log_hints: its WAL does not show "
            "every page that it changed, so pg_rewind could miss some",
            base_backup,
        )
    return None


def same_timeline_problem(tli: int, base_backup: str) -> Problem:
    """The loser of two simultaneous promotions, or a copy that ran as a primary. pg_rewind finds
    the point of divergence by timelines alone, so it would not undo what this server wrote."""
    return Problem(
        f"the old primary is on timeline {tli}, like the new one: pg_rewind cannot find where they "
        "diverged",
        base_backup,
    )


def lost_tails(names: Iterable[str], history: TimelineHistory, wal_seg_size: int) -> dict[str, int]:
    """Segments with WAL that is not of this history, and how many of their bytes are.

    pg_rewind leaves the segments that it has read in place. If the new timeline's segment is no
    longer beside them, recovery reads them to their end: it checks the segment in which a timeline
    begins, not the position where the previous one ended. Source: `xlogrecovery.c`,
    XLogFileReadAnyTLI.
    """
    tails = {}
    for name, segment in _segments(names, wal_seg_size):
        if segment.tli == history.tli:
            continue
        left_lsn = {entry.tli: entry.switch_lsn for entry in history.entries}.get(segment.tli, 0)
        kept_bytes = max(0, left_lsn - segment_start_lsn(segment.segno, wal_seg_size))
        if kept_bytes < wal_seg_size:
            tails[name] = kept_bytes
    return tails


def recovery_start_lsn(backup_label: str) -> int | None:
    """Where the recovery of a server with this file begins; pg_rewind writes it. None if the file
    does not say. Source: `pg_rewind.c`, createBackupLabel."""
    match = re.search(r"^START WAL LOCATION: ([0-9A-F]+/[0-9A-F]+) ", backup_label, re.MULTILINE)
    return int(Lsn.parse(match[1])) if match is not None else None


def streamed_from_lsn(
    first_pages: Mapping[str, bytes], begin_lsn: int, history: TimelineHistory, wal_seg_size: int
) -> int:
    """The position from which a recovery that begins at `begin_lsn` requests WAL: the start of the
    last segment that pg_wal has without a gap, which may not be full. `first_pages`: the first page
    of each file.

    A segment in the middle of which a timeline ended is not complete. A recycled segment has the
    name of a later position, but an old page in it.
    """
    present = set()
    for name, segment in _segments(first_pages, wal_seg_size):
        first_lsn = segment_start_lsn(segment.segno, wal_seg_size)
        header = parse_page_header(first_pages[name])
        is_written = header is not None and header.page_lsn == first_lsn
        if is_written and segment.tli == history.tli_at(first_lsn + wal_seg_size - 1):
            present.add(segment.segno)
    segno = segno_of(begin_lsn, wal_seg_size)
    while segno + 1 in present and segno in present:
        segno += 1
    return max(begin_lsn, segment_start_lsn(segno, wal_seg_size))


def _segments(names: Iterable[str], wal_seg_size: int) -> Iterator[tuple[str, SegmentName]]:
    """The segments among the files in pg_wal."""
    for name in names:
        try:
            segment = parse_segment_name(name, wal_seg_size)
        except SegmentNameError:
            continue  # a history file, a directory
        if not segment.partial:
            yield name, segment


def missing_wal_problem(
    needed_lsn: int, oldest_lsns: Iterable[int], base_backup: str
) -> Problem | None:
    """Why the standby would wait forever: no server has the WAL that it needs. `oldest_lsns` are
    the start positions of the safekeepers' logs."""
    oldest_lsn = min(oldest_lsns, default=0)
    if oldest_lsn <= needed_lsn:
        return None
    return Problem(
        f"it is a standby now, but its recovery needs WAL from {format_lsn(needed_lsn)} on, and "
        f"the oldest WAL of a safekeeper begins at {format_lsn(oldest_lsn)}",
        f"{base_backup} Where the WAL is archived, set a restore_command (sk archive fetch).",
    )


def base_backup_hint(data_dir: str, conninfo: str, *, exists: bool = True) -> str:
    """How to rebuild the standby. `exists`: there is a data directory."""
    move = f"move {data_dir} away, " if exists else ""
    return (
        f"A new base backup is needed: {move}take one from the new primary "
        f"(pg_basebackup --pgdata={data_dir} --write-recovery-conf), and set primary_conninfo = "
        f"{_quoted(conninfo)} in it."
    )


def failure_reason(output: str) -> str:
    """The line of pg_rewind's output that has the error."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.search(r"\b(error|fatal)\b", line)]
    return (errors or lines or ["it gave no reason"])[-1].removeprefix("pg_rewind: ").strip()


def standby_settings(auto_conf: str, conninfo: str) -> str:
    """postgresql.auto.conf of a standby that follows `conninfo`. The other settings stay."""
    ours = ("primary_conninfo", "primary_slot_name")
    kept = [line for line in auto_conf.splitlines() if not line.strip().startswith(ours)]
    lines = [*kept, f"primary_conninfo = {_quoted(conninfo)}", "primary_slot_name = ''"]
    return "\n".join(lines) + "\n"


def _quoted(value: str) -> str:
    """Quoted for a configuration file: quotes and backslashes are doubled."""
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"'{escaped}'"
