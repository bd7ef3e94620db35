"""Which object contains what: keys as pure functions of their content.

    TENANT/TIMELINE/                                    32 hex digits each
        timeline.json                                   facts of its server, where its WAL begins
        history/00000002.history                        as Postgres writes it
        wal/00000001/000000010000000000000005           a whole segment, under its Postgres name
        wal/00000001/000000010000000000000006.partial/000000000612AB40
                                                        its beginning, up to that position
        backups/20261121T101500.123Z-0000000005000028/  a base backup, begun at that position
        pages/                                          pageserver/objects/page_keys.py


The name of a partial object contains its end position, in 16 hex digits. Committed WAL never
changes, so two archivers that work at once write equal bytes under equal keys, and a late one never
replaces more WAL by less. A segment with a switch of the Postgres timeline is stored whole under
the newest of its timelines, as on a server's disk. Keys of a folder sort in the order of their WAL.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.history import history_file_name
from quorum_wal.pgwal.segment import format_segment_name, parse_segment_name

TIMELINE_FILE = "timeline.json"
PARTIAL = ".partial"
LSN_DIGITS = 16


@dataclass(frozen=True, slots=True)
class ArchivedWal:
    """The WAL in one object under `wal/`: its segment up to `end_lsn`, whole or not."""

    tli: int
    segno: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class ArchiveKeys:
    """The keys of one timeline."""

    timeline: TimelineId
    wal_seg_size: int

    @property
    def prefix(self) -> str:
        return timeline_prefix(self.timeline)

    @property
    def wal(self) -> str:
        """The folder of all WAL."""
        return f"{self.prefix}wal/"

    @property
    def histories(self) -> str:
        return f"{self.prefix}history/"

    @property
    def backups(self) -> str:
        return f"{self.prefix}backups/"

    def history(self, tli: int) -> str:
        return f"{self.histories}{history_file_name(tli)}"

    def wal_of(self, tli: int) -> str:
        return f"{self.wal}{tli:08X}/"

    def segment(self, tli: int, segno: int) -> str:
        return self.wal_of(tli) + format_segment_name(tli, segno, self.wal_seg_size)

    def partials(self, tli: int, segno: int) -> str:
        """The folder of a segment's partial objects."""
        return f"{self.segment(tli, segno)}{PARTIAL}/"

    def partial(self, wal: ArchivedWal) -> str:
        return f"{self.partials(wal.tli, wal.segno)}{wal.end_lsn:0{LSN_DIGITS}X}"

    def key(self, wal: ArchivedWal) -> str:
        is_whole = wal.end_lsn == (wal.segno + 1) * self.wal_seg_size
        return self.segment(wal.tli, wal.segno) if is_whole else self.partial(wal)

    def parse_wal(self, key: str) -> ArchivedWal | None:
        """The WAL that a key under `wal/` names; None for a foreign object."""
        folder, _, rest = key.removeprefix(self.wal).partition("/")
        segment, has_generation, generation = rest.partition(f"{PARTIAL}/")
        try:
            name = parse_segment_name(segment, self.wal_seg_size)
            begin_lsn = name.segno * self.wal_seg_size
            end_lsn = int(generation, 16) if has_generation else begin_lsn + self.wal_seg_size
        except (SegmentNameError, ValueError):
            return None
        if not begin_lsn < end_lsn <= begin_lsn + self.wal_seg_size or name.partial:
            return None
        wal = ArchivedWal(name.tli, name.segno, end_lsn)
        return wal if folder == f"{name.tli:08X}" and self.key(wal) == key else None


def timeline_prefix(timeline: TimelineId) -> str:
    return f"{timeline}/"
