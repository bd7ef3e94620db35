"""The archive of one timeline as an input.

    wal/00000001/...05    wal/00000001/...06    wal/00000001/...07.partial/0000000007A1B2C8

Law: the name of an object says what it contains, and its content is verified (`sealed.py`).
Reading a whole segment needs no listing, so a task needs one request for each segment, however long
the archive is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.archive import TimelineArchive, require_archive
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound, ObjectStoreError
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.store import open_store
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import OptionError, WalInputError
from quorum_wal.spark.inputs.wal_input import LostWal, WalChunk

#: An archiver may upload this many segments at once, so a later one can arrive first; and the time
#: that one of them may take.
UPLOADS_MAX = 16
ARRIVAL_SECONDS = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class ArchiveInput:
    """`timeline` TENANT/TIMELINE, None: the only one; `tli` None: Postgres's newest. `options` are
    those of the store; they may contain secrets, and are never shown."""

    url: str
    timeline: str | None = None
    tli: int | None = None
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    poll_seconds: float = 1.0
    ends_at_record: bool = False

    def facts(self) -> ServerFacts:
        return self._open().archive.facts.server

    def end(self) -> tuple[int, int]:
        opened = self._open()
        return opened.history.tli, opened.newest_lsn(0)

    def extent(self, from_lsn: int | None = None) -> tuple[int, int]:
        return self._open().extent(from_lsn)

    def newest_lsn(self, from_lsn: int = 0) -> int:
        return self._open().newest_lsn(from_lsn)

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        opened = self._open()
        seg_size = opened.archive.facts.wal_seg_size
        while end_lsn is None or lsn < end_lsn:
            segment_lsn = lsn - lsn % seg_size
            name, content = opened.segment(lsn // seg_size)
            if not content and end_lsn is not None and end_lsn - lsn <= UPLOADS_MAX * seg_size:
                name, content = opened.wait_for_segment(lsn // seg_size)
            stop = seg_size if end_lsn is None else min(seg_size, end_lsn - segment_lsn)
            data = content[lsn - segment_lsn : stop]
            if data:
                yield WalChunk(lsn, data, name)
                lsn += len(data)
            if segment_lsn + stop > lsn:
                if end_lsn is None:
                    return
                raise LostWal(
                    lsn,
                    f"archive {self.url} has no WAL from {format_lsn(lsn)} on, but is expected to "
                    f"have it up to {format_lsn(end_lsn)}",
                    hint="sk archive verify lists all missing WAL.",
                )

    def _open(self) -> OpenedArchive:
        return _result(self._require)

    def _require(self) -> OpenedArchive:
        try:
            timeline = TimelineId.parse(self.timeline) if self.timeline else None
        except MessageError as error:
            raise OptionError(f"option timeline: {error}") from error
        archive = require_archive(open_store(self.url, dict(self.options)), timeline)
        if self.tli is None:
            return OpenedArchive(archive, archive.newest_history())
        if self.tli == archive.facts.tli:
            return OpenedArchive(archive, TimelineHistory(self.tli))
        return OpenedArchive(archive, archive.history(self.tli))


@dataclass(frozen=True, slots=True)
class OpenedArchive:
    """An archive, and one timeline history in it."""

    archive: TimelineArchive
    history: TimelineHistory

    def extent(self, from_lsn: int | None) -> tuple[int, int]:
        archive, history = self.archive, self.history
        start_lsn = archive.facts.timeline_start_lsn if from_lsn is None else from_lsn
        start_lsn -= start_lsn % archive.facts.wal_seg_size
        if from_lsn is None:
            start_lsn = _result(lambda: archive.first_lsn(history, start_lsn)) or start_lsn
        return start_lsn, _result(lambda: archive.archived_lsn(history, start_lsn))

    def newest_lsn(self, from_lsn: int) -> int:
        after = from_lsn // self.archive.facts.wal_seg_size - 1
        ends = _result(lambda: list(self._ends(after)))
        return max(ends, default=max(from_lsn, self.archive.facts.timeline_start_lsn))

    def _ends(self, after_segno: int) -> Iterator[int]:
        """The end LSNs of the objects of this history."""
        history = self.history
        for tli in (*(entry.tli for entry in history.entries), history.tli):
            for wal in self.archive.wal(tli, after_segno):
                if history.tli_at(wal.end_lsn - 1) == tli:
                    yield wal.end_lsn

    def segment(self, segno: int) -> tuple[str, bytes]:
        """The object's name and its content; empty if there is none. Raises LostWal."""
        lsn = segno * self.archive.facts.wal_seg_size
        return _result(lambda: self._find(segno), lsn)

    def wait_for_segment(self, segno: int) -> tuple[str, bytes]:
        """Like `segment`, but waits up to ARRIVAL_SECONDS for the object."""
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while True:
            name, content = self.segment(segno)
            if content or time.monotonic() > deadline:
                return name, content
            time.sleep(ARRIVAL_SECONDS / 20)

    def _find(self, segno: int) -> tuple[str, bytes]:
        """Between two requests an archiver may store the whole segment and delete its beginnings,
        so the whole segment is tried before and after."""
        for find in (self._whole, self._beginning, self._whole):
            try:
                return find(segno)
            except ObjectNotFound:
                continue
        return "", b""

    def _whole(self, segno: int) -> tuple[str, bytes]:
        end_lsn = (segno + 1) * self.archive.facts.wal_seg_size
        wal = ArchivedWal(self.history.tli_at(end_lsn - 1), segno, end_lsn)
        return self.archive.keys.key(wal), self.archive.read(wal)

    def _beginning(self, segno: int) -> tuple[str, bytes]:
        """The beginning on the newest timeline that has one, up to the end of that timeline."""
        start_lsn = segno * self.archive.facts.wal_seg_size
        end_lsn = start_lsn + self.archive.facts.wal_seg_size
        tlis = {self.history.tli_at(start_lsn), self.history.tli_at(end_lsn - 1)}
        tlis |= {e.tli for e in self.history.entries if start_lsn < e.switch_lsn < end_lsn}
        for tli in sorted(tlis, reverse=True):
            try:
                content = self.archive.read_beginning(tli, segno)
            except ObjectNotFound:
                continue
            switch_lsn = self.history.switch_lsn_of(tli)
            stop = None if switch_lsn is None else switch_lsn - start_lsn
            return self.archive.keys.partials(tli, segno), content[:stop]
        raise ObjectNotFound(f"no beginning of segment {segno:X}")


def _result(question: Callable[[], T], lsn: int | None = None) -> T:
    """Asks the store. Raises WalInputError, or LostWal if the object at `lsn` is damaged."""
    try:
        return question()
    except ObjectDamaged as error:
        if lsn is None:
            raise WalInputError(str(error), hint=error.hint) from error
        raise LostWal(lsn, f"WAL at {format_lsn(lsn)}: {error}", hint=error.hint) from error
    except (ObjectStoreError, WalError) as error:
        raise WalInputError(str(error), hint=getattr(error, "hint", "")) from error
