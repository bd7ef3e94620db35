"""The archive as a source of WAL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from quorum_wal.backup.wal_source import WalSourceError, check_beginning
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.archive import TimelineArchive
from quorum_wal.objectstore.errors import ObjectNotFound
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.segment import parse_segment_name


class ArchivedWalSource:
    """A WalSource. Opens the archive on first use; after a failure the next use tries again."""

    def __init__(self, open_archive: Callable[[], TimelineArchive]) -> None:
        self._open = open_archive

    @cached_property
    def _archive(self) -> TimelineArchive:
        return self._open()

    @property
    def server(self) -> ServerFacts | None:
        return self._archive.facts.server

    def history(self, tli: int) -> bytes | None:
        try:
            return self._archive.history(tli).format().encode()
        except ObjectNotFound:
            return None

    def segment(self, name: str) -> bytes:
        archive = self._archive
        asked = parse_segment_name(name, archive.facts.wal_seg_size)
        content = self._longest(asked.tli, asked.segno)
        if len(content) < archive.facts.wal_seg_size:
            content = max(content, self._of_newer(asked.tli, asked.segno), key=len)
        if content:
            check_beginning(content, asked.tli, asked.segno, archive.facts.server)
        elif self._is_gap(asked.tli, asked.segno):
            raise WalSourceError(
                f"archive {archive.store.url} has WAL before and after segment {name}, "
                "but not the segment itself",
                hint="sk archive verify lists all missing WAL. A recovery would end here.",
            )
        return content

    def _is_gap(self, tli: int, segno: int) -> bool:
        """The archive lacks this segment, but has WAL both before and after it."""
        archive, history = self._archive, self._archive.newest_history()
        if next(archive.wal(tli, segno), None) is None:
            return False
        before = [entry for entry in history.entries if entry.tli < tli]
        if before and before[-1].switch_lsn // archive.facts.wal_seg_size > segno:
            return False  # the timeline begins later
        firsts = (next(archive.wal(each), None) for each in (*(e.tli for e in before), tli))
        return any(first is not None and first.segno < segno for first in firsts)

    def _longest(self, tli: int, segno: int) -> bytes:
        """The longest object of exactly this name. Between two requests an archiver may store the
        whole segment and delete its beginnings, so the whole segment is read before and after."""
        for read in (
            self._archive.read_segment,
            self._archive.read_beginning,
            self._archive.read_segment,
        ):
            try:
                return read(tli, segno)
            except ObjectNotFound:
                continue
        return b""

    def _of_newer(self, tli: int, segno: int) -> bytes:
        """A segment in which timelines switch is stored whole under the newest timeline. Its bytes
        below the switch are those of the older timeline."""
        seg_size = self._archive.facts.wal_seg_size
        history = self._archive.newest_history()
        end_lsn = _end_within(history, tli, segno, seg_size)
        if end_lsn is None:
            return b""
        newer = (self._longest(each, segno) for each in _tlis_after(history, tli))
        return max(newer, key=len)[: end_lsn - segno * seg_size]


def _end_within(history: TimelineHistory, tli: int, segno: int, wal_seg_size: int) -> int | None:
    """The end of `tli`, or None if the end is not inside this segment."""
    for entry in history.entries:
        if entry.tli == tli and entry.switch_lsn // wal_seg_size == segno:
            return entry.switch_lsn
    return None


def _tlis_after(history: TimelineHistory, tli: int) -> list[int]:
    return [t for t in (*(entry.tli for entry in history.entries), history.tli) if t > tli]
