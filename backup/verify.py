"""Checks that the archived log can be replayed: no byte is missing, and every record is whole.

    segment      |rest of R1|R2|R3| ... |Rn ..|rest of Rn|R ...          a worker checks each one
                 ^ head ->  ^           tail ->^                         from its first record on
    seams                       Rn, whose two parts are in two objects: checked here

It checks the seal of each object, the header of each page, and the CRC and back link of each
record, also across objects and timelines. It checks that each page has the timeline that the
history gives. It reports every gap and every damaged object, and goes on after it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

from quorum_wal.backup.archived_log import ArchivedLog, Gap, StoredWal
from quorum_wal.backup.ordered_map import in_order
from quorum_wal.backup.retry import with_retries
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.archive import ArchivedTimeline, TimelineArchive
from quorum_wal.objectstore.errors import ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.keys import ArchivedWal
from quorum_wal.objectstore.sealed import SEAL, Seal
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.pgwal.errors import WalError, WalFormatError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, parse_page_header
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker

#: Segments given to a worker before their results are needed.
AHEAD = 4
FAST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Damage:
    """A damaged object."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`is_sound` if a restore can replay [begin_lsn, end_lsn)."""

    begin_lsn: int
    end_lsn: int
    objects: int
    content_bytes: int
    gaps: tuple[Gap, ...]
    damages: tuple[Damage, ...]

    @property
    def is_sound(self) -> bool:
        return not self.gaps and not self.damages


@dataclass(frozen=True, slots=True)
class ArchiveAddress:
    """How a worker opens the archive: a store cannot be pickled."""

    url: str
    options: Mapping[str, str]
    timeline: TimelineId
    facts: ArchivedTimeline

    def open(self) -> TimelineArchive:
        store = open_store(self.url, self.options)
        return TimelineArchive(store, self.timeline, self.facts)


@dataclass(frozen=True, slots=True)
class SegmentCheck:
    """The result of a worker. `head` ends with the first record; `tail` follows the last one.
    Without a record, all content is head. If `damage` is set, the other fields are not used."""

    head: bytes = b""
    has_record: bool = False
    tail: bytes = b""
    tail_lsn: int = 0
    last_record_lsn: int = 0
    damage: str = ""


def verify(
    address: ArchiveAddress,
    log: ArchivedLog,
    progress: Callable[[int], None] = lambda _: None,
    jobs: int | None = None,
) -> Verdict:
    """Reads all objects. `progress` gets the bytes of each segment. Raises ObjectStoreError if the
    store itself fails."""
    archive = address.open()
    seams = _Seams(archive, log)
    with ProcessPoolExecutor(jobs or os.cpu_count(), mp_context=get_context("spawn")) as pool:
        check = partial(check_segment, address, log.history)
        for stored, found in in_order(pool, check, log.pieces, AHEAD * (jobs or 4)):
            seams.add(stored, found)
            progress(stored.wal.end_lsn - stored.wal.segno * archive.facts.wal_seg_size)
    return _verdict(log, archive.facts.wal_seg_size, seams.damages)


def verify_fast(
    store: ObjectStore,
    log: ArchivedLog,
    wal_seg_size: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Verdict:
    """Checks that the objects exist, and their seals. Does not read their content."""
    damages = []
    with ThreadPoolExecutor(FAST_THREADS) as pool:
        check = partial(_check_seal, store, wal_seg_size)
        for stored, reason in in_order(pool, check, log.pieces, FAST_THREADS * AHEAD):
            if reason:
                damages.append(Damage(stored.info.key, reason))
            progress(stored.wal.end_lsn - stored.wal.segno * wal_seg_size)
    return _verdict(log, wal_seg_size, damages)


def _verdict(log: ArchivedLog, seg_size: int, damages: Sequence[Damage]) -> Verdict:
    content_bytes = sum(s.wal.end_lsn - s.wal.segno * seg_size for s in log.pieces)
    return Verdict(
        log.begin_lsn, log.end_lsn, len(log.pieces), content_bytes, log.gaps, tuple(damages)
    )


def _check_seal(store: ObjectStore, seg_size: int, stored: StoredWal) -> str:
    """The reason why the object is damaged, or ""."""
    key, wal = stored.info.key, stored.wal
    expected = wal.end_lsn - wal.segno * seg_size
    is_whole = expected == seg_size
    try:
        seal = Seal.decode(with_retries(lambda: store.get_tail(key, SEAL.size)), key)
    except ObjectNotFound as error:
        return str(error) if is_whole else ""  # a longer object has replaced it
    except ObjectDamaged as error:
        return str(error)
    if seal.content_length != expected:
        return f"the object holds {seal.content_length} bytes, expected {expected}"
    return ""


# ---- one segment, in a worker


def check_segment(
    address: ArchiveAddress, history: TimelineHistory, stored: StoredWal
) -> SegmentCheck:
    """Raises ObjectStoreError if the store itself fails."""
    archive = address.open()
    wal = stored.wal
    try:
        content = with_retries(lambda: _read(archive, wal))
        _check_timelines(content, wal, history, archive.facts.wal_seg_size)
        return _walk(content, wal, archive.facts)
    except (ObjectDamaged, ObjectNotFound, WalError) as error:
        return SegmentCheck(damage=str(error))


def _read(archive: TimelineArchive, wal: ArchivedWal) -> bytes:
    """The content as it was listed. A longer object may have replaced a beginning since."""
    try:
        return archive.read(wal)
    except ObjectNotFound:
        if wal.end_lsn % archive.facts.wal_seg_size == 0:
            raise
    length = wal.end_lsn - wal.segno * archive.facts.wal_seg_size
    try:
        return archive.read_beginning(wal.tli, wal.segno)[:length]
    except ObjectNotFound:
        return archive.read_segment(wal.tli, wal.segno)[:length]


def _walk(content: bytes, wal: ArchivedWal, facts: ArchivedTimeline) -> SegmentCheck:
    begin_lsn = wal.segno * facts.wal_seg_size
    walker = _walker(facts, begin_lsn, skip_continuation=True)
    walker.feed(content)
    record = walker.next()
    if record is NEED_DATA:
        return SegmentCheck(head=content)
    walker.skip_records()
    assert walker.last_record_lsn is not None
    return SegmentCheck(
        head=content[: record.end_lsn - begin_lsn],
        has_record=True,
        tail=content[walker.record_end_lsn - begin_lsn :],
        tail_lsn=walker.record_end_lsn,
        last_record_lsn=walker.last_record_lsn,
    )


def _check_timelines(
    content: bytes, wal: ArchivedWal, history: TimelineHistory, seg_size: int
) -> None:
    """Checks the timeline of the first page, and of the first page after each switch."""
    begin_lsn = wal.segno * seg_size
    starts = {begin_lsn}
    for entry in history.entries:
        starts.add(-(-entry.switch_lsn // WAL_PAGE_SIZE) * WAL_PAGE_SIZE)
    for lsn in sorted(starts):
        if not begin_lsn <= lsn < wal.end_lsn:
            continue
        header = parse_page_header(content, lsn - begin_lsn)
        # After XLOG_SWITCH the bytes can be anything, so only a fitting address makes it a page.
        is_page = header is not None and header.page_lsn == lsn
        if header is not None and is_page and header.tli != history.tli_at(lsn):
            raise WalFormatError(
                lsn,
                f"WAL page at {format_lsn(lsn)} is of timeline {header.tli} "
                f"(expected {history.tli_at(lsn)})",
            )


def _walker(facts: ArchivedTimeline, lsn: int, **options: int | None) -> RecordWalker:
    return RecordWalker(
        lsn,
        wal_seg_size=facts.wal_seg_size,
        version_major=facts.server.pg_major,
        system_id=facts.system_id,
        prev_lsn=options.get("prev_lsn"),
        skip_continuation=bool(options.get("skip_continuation")),
    )


# ---- between the segments


class _Seams:
    """Checks the records that cross from one segment to the next."""

    def __init__(self, archive: TimelineArchive, log: ArchivedLog) -> None:
        self._facts = archive.facts
        self.damages: list[Damage] = []
        #: The log is sound up to here; another segment follows a gap or damage.
        self._reached_lsn = -1
        self._walker: RecordWalker | None = None

    def add(self, stored: StoredWal, found: SegmentCheck) -> None:
        begin_lsn = stored.wal.segno * self._facts.wal_seg_size
        if begin_lsn != self._reached_lsn:
            self._walker = None
        if found.damage:
            self.damages.append(Damage(stored.info.key, found.damage))
            self._reached_lsn = -1
            return
        if self._walker is not None:
            self._walker.feed(found.head)
            try:
                self._walker.skip_records()
            except WalFormatError as error:
                self.damages.append(Damage(stored.info.key, str(error)))
                self._walker = None
        if found.has_record:
            self._walker = _walker(self._facts, found.tail_lsn, prev_lsn=found.last_record_lsn)
            self._walker.feed(found.tail)
        self._reached_lsn = stored.wal.end_lsn
