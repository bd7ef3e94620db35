"""One listing of a folder of WAL: the server, the timelines, and the files of each segment.

    00000001...05   00000001...06.partial   00000002...06   00000002...07   00000002.history
    `--- tli 1 ----------------------'      has both timelines, before and after the switch

Laws. Each byte is of the timeline that wrote it by the history. It comes from the file of the
newest timeline that has the segment; otherwise from an older timeline's file, up to the end of that
timeline. If two files have one segment, they must be equal. Files that a server keeps for later use
are not WAL.
Source: Postgres `XLogFileReadAnyTLI`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.errors import SegmentNameError, TimelineHistoryError, WalError
from quorum_wal.pgwal.history import TimelineHistory, history_file_name, parse_history_file_name
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, PageHeader, parse_page_header
from quorum_wal.pgwal.segment import WAL_SEG_SIZE_MAX, WAL_SEG_SIZE_MIN, check_wal_seg_size
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS, wal_version
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.segment_file import (
    BLOCK_BYTES,
    RemovedSegment,
    SegmentFile,
    parse_segment_file,
)
from quorum_wal.spark.inputs.wal_input import LostWal, WalChunk

_MAJORS = {wal_version(major).page_magic: major for major in SUPPORTED_MAJORS}


@dataclass(frozen=True, slots=True)
class SegmentFolder:
    """`files` has the segments of one history, by number. If a segment has several files, the first
    is read and the others are compared with it."""

    path: Path
    facts: ServerFacts
    history: TimelineHistory
    files: dict[int, Sequence[SegmentFile]]

    def start_lsn(self, segno: int) -> int:
        return segno * self.facts.wal_seg_size

    def chunks(self, segno: int, lsn: int) -> Iterator[WalChunk]:
        """One segment from `lsn` up to the end of its file. Raises LostWal, WalInputError."""
        if segno not in self.files:
            raise self._missing(self.start_lsn(segno))
        file, *others = self.files[segno]
        seg_size = self.facts.wal_seg_size
        for other in others:
            _check_same(file, other, seg_size)
        end_lsn = self._end_lsn(file)
        offset = lsn - self.start_lsn(segno)
        offset -= offset % BLOCK_BYTES
        at = self.start_lsn(segno) + offset
        for block in file.blocks(seg_size, offset):
            data = block[max(0, lsn - at) : max(0, end_lsn - at)]
            if data:
                yield WalChunk(max(lsn, at), data, str(file.path))
            at += len(block)
        at = min(at, end_lsn)
        if at < self.start_lsn(segno + 1) and segno < max(self.files):
            raise self._missing(at)

    def continues_after(self, lsn: int) -> bool:
        """Whether a page after that of `lsn`, in the same segment, is valid and in its place."""
        page_lsn = lsn - lsn % WAL_PAGE_SIZE + WAL_PAGE_SIZE
        segno = lsn // self.facts.wal_seg_size
        if page_lsn == self.start_lsn(segno + 1):
            return False
        return any(
            self._is_page(parse_page_header(chunk.data, at), chunk.lsn + at)
            for chunk in self.chunks(segno, page_lsn)
            for at in range(0, len(chunk.data), WAL_PAGE_SIZE)
        )

    def is_unused(self, segno: int) -> bool:
        """Whether the file is kept for later use: it has another segment's content, or zeros."""
        file = self.files[segno][0]
        lsn = self.start_lsn(segno)
        try:
            head = file.head(self.facts.wal_seg_size)
        except RemovedSegment:
            raise
        except LostWal:
            return False
        header = parse_page_header(head)
        if header is None:
            return file.is_partial
        if any(head[:WAL_PAGE_SIZE]):
            return header.magic in _MAJORS and header.page_lsn < lsn
        return not self._is_page(parse_page_header(head, WAL_PAGE_SIZE), lsn + WAL_PAGE_SIZE)

    def _is_page(self, header: PageHeader | None, lsn: int) -> bool:
        return header is not None and header.magic in _MAJORS and header.page_lsn == lsn

    def _end_lsn(self, file: SegmentFile) -> int:
        """The end of the readable part: the end of the segment, or of its timeline."""
        end_lsn = self.start_lsn(file.segno + 1)
        switch_lsn = self.history.switch_lsn_of(file.tli)
        return end_lsn if switch_lsn is None else min(end_lsn, switch_lsn)

    def _missing(self, lsn: int) -> LostWal:
        segno = lsn // self.facts.wal_seg_size
        return LostWal(
            lsn,
            f"folder {self.path} has no WAL of segment {segno:X} from {format_lsn(lsn)} on, but "
            f"has WAL up to segment {max(self.files):X}",
            hint="Add the segment to the folder, or read with on_damage=skip or stop.",
        )


def open_folder(path: Path, tli: int | None = None) -> SegmentFolder:
    """`tli` None: the newest timeline in the folder. Raises WalInputError."""
    try:
        names = sorted(entry.name for entry in path.iterdir())
    except OSError as error:
        raise WalInputError(f"could not read folder {path}: {error.strerror}") from error
    facts = _facts(path, names)
    found = [parse_segment_file(path / name, facts.wal_seg_size) for name in names]
    files = [file for file in found if file is not None]
    history = _history(path, names, {file.tli for file in files}, tli)
    folder = SegmentFolder(path, facts, history, _files_of(history, files, facts.wal_seg_size))
    while folder.files and folder.is_unused(max(folder.files)):
        del folder.files[max(folder.files)]
    if not folder.files:
        raise WalInputError(f"folder {path} has no WAL of timeline {history.tli}")
    return folder


def _facts(path: Path, names: Sequence[str]) -> ServerFacts:
    """The facts of the server, from the oldest segment with a readable first page."""
    for name in names:
        # The segment size is not known yet; with the smallest size every name is valid.
        file = parse_segment_file(path / name, WAL_SEG_SIZE_MIN)
        facts = _facts_of(file) if file is not None else None
        if facts is not None:
            return facts
    raise WalInputError(
        f"folder {path} has no readable WAL segment",
        hint="The name of a segment is 24 hex digits, then optionally .partial, .gz, .zst, .lz4.",
    )


def _facts_of(file: SegmentFile) -> ServerFacts | None:
    try:
        header = parse_page_header(file.head(WAL_SEG_SIZE_MAX))
    except LostWal:
        return None
    if header is None or header.system_id is None or header.wal_seg_size is None:
        return None
    try:
        check_wal_seg_size(header.wal_seg_size)
    except SegmentNameError:
        return None
    if header.magic not in _MAJORS:
        return None
    return ServerFacts(header.system_id, _MAJORS[header.magic] * 10000, header.wal_seg_size)


def _history(
    path: Path, names: Sequence[str], tlis: set[int], wanted: int | None
) -> TimelineHistory:
    """The history of the wanted timeline, or of the newest one. Raises WalInputError."""
    histories: dict[int, str] = {}
    for name in names:
        try:
            histories[parse_history_file_name(name)] = name
        except TimelineHistoryError:
            continue  # a segment, or another file
    tli = max(tlis | set(histories)) if wanted is None else wanted
    if tli not in tlis | set(histories):
        raise WalInputError(
            f"folder {path} has no WAL of timeline {tli}",
            hint=f"It has timelines {', '.join(map(str, sorted(tlis)))}.",
        )
    if tli in histories:
        try:
            return TimelineHistory.parse(tli, (path / histories[tli]).read_text())
        except (WalError, OSError, UnicodeDecodeError) as error:
            raise WalInputError(f"could not read {path / histories[tli]}: {error}") from error
    if any(other < tli for other in tlis):
        raise WalInputError(
            f"folder {path} has several timelines, but not {history_file_name(tli)}",
            hint=f"Add that file, or name one of {', '.join(map(str, sorted(tlis)))} as tli.",
        )
    return TimelineHistory(tli)


def _files_of(
    history: TimelineHistory, files: Sequence[SegmentFile], wal_seg_size: int
) -> dict[int, Sequence[SegmentFile]]:
    """By segment, of the newest timeline that has it: whole ones and uncompressed ones first."""
    first_segno: dict[int, int] = {}
    last_segno: dict[int, int] = {}
    begin_lsn = 0
    for entry in history.entries:
        first_segno[entry.tli] = begin_lsn // wal_seg_size
        last_segno[entry.tli] = (entry.switch_lsn - 1) // wal_seg_size
        begin_lsn = entry.switch_lsn
    first_segno[history.tli] = begin_lsn // wal_seg_size
    found: dict[int, list[SegmentFile]] = {}
    for file in files:
        last = last_segno.get(file.tli, file.segno)
        if file.tli in first_segno and first_segno[file.tli] <= file.segno <= last:
            found.setdefault(file.segno, []).append(file)
    return {segno: _newest(found[segno]) for segno in sorted(found)}


def _newest(files: Sequence[SegmentFile]) -> Sequence[SegmentFile]:
    tli = max(file.tli for file in files)
    same = (file for file in files if file.tli == tli)
    return sorted(same, key=lambda file: (file.is_partial, file.compression))


def _check_same(file: SegmentFile, other: SegmentFile, wal_seg_size: int) -> None:
    """`file` must contain the content of `other`, without padding zeros. Raises LostWal."""
    lsn, ended = file.segno * wal_seg_size, False
    pairs = zip_longest(file.blocks(wal_seg_size), other.blocks(wal_seg_size), fillvalue=b"")
    for block, copy in pairs:
        known = copy.rstrip(b"\0") if other.is_partial else copy
        if known != block[: len(known)] or (ended and known):
            at = next((i for i, byte in enumerate(known) if block[i : i + 1] != bytes([byte])), 0)
            raise LostWal(
                lsn + at,
                f"segment files {file.path} and {other.path} differ at {format_lsn(lsn + at)}",
                hint="They are of two servers, or one is damaged. Remove the wrong one.",
            )
        ended = ended or len(known) < len(block)
        lsn += len(block)
