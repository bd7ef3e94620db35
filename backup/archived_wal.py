"""The archive as a source of WAL."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from backup.wal_source import WalSourceError, check_beginning
from consensus.messages import ServerFacts
from objectstore.archive import TimelineArchive
from objectstore.errors import ObjectNotFound
from pgwal.history import TimelineHistory
from pgwal.segment import parse_segment_name


class ArchivedWalSource:
    """A WalSource. `open_archive` is called when it is first asked, and again if that failed."""

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
                f"archive {archive.store.url} has WAL before and behind segment {name}, "
                "but not the segment",
                hint="sk archive verify names all that is missing; a recovery would end here.",
            )
        return content

    def _is_gap(self, tli: int, segno: int) -> bool:
        """There was such a segment: what came before it is there, and what came behind."""
        archive, history = self._archive, self._archive.newest_history()
        if next(archive.wal(tli, segno), None) is None:
            return False
        before = [entry for entry in history.entries if entry.tli < tli]
        if before and before[-1].switch_lsn // archive.facts.wal_seg_size > segno:
            return False  # the timeline begins later
        firsts = (next(archive.wal(each), None) for each in (*(e.tli for e in before), tli))
        return any(first is not None and first.segno < segno for first in firsts)

    def _longest(self, tli: int, segno: int) -> bytes:
        """What there is under this very name. An archiver may put the whole there and remove its
        beginnings between two requests; so the whole is asked for before and after."""
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
        """Of a segment in which timelines switch there is the whole under the newest one: below
        the switch its bytes are the older timeline's."""
        seg_size = self._archive.facts.wal_seg_size
        history = self._archive.newest_history()
        end_lsn = _end_within(history, tli, segno, seg_size)
        if end_lsn is None:
            return b""
        newer = (self._longest(each, segno) for each in _tlis_after(history, tli))
        return max(newer, key=len)[: end_lsn - segno * seg_size]


def _end_within(history: TimelineHistory, tli: int, segno: int, wal_seg_size: int) -> int | None:
    """Where `tli` ends, if that is inside this segment."""
    for entry in history.entries:
        if entry.tli == tli and entry.switch_lsn // wal_seg_size == segno:
            return entry.switch_lsn
    return None


def _tlis_after(history: TimelineHistory, tli: int) -> list[int]:
    return [t for t in (*(entry.tli for entry in history.entries), history.tli) if t > tli]
