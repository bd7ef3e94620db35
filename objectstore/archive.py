"""The WAL and the histories of one timeline, in an object store.

    timeline_start_lsn ... whole segments ... | the beginning of the next one |
                                              ^ archived_lsn is behind this     ^ or here


Laws. Only committed WAL is written here. An object is never replaced by other content: if an object
exists with other content than ours, two logs use one name, and that is an error. A reader gets a
verified segment, or an error.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import TypeAlias

import msgspec

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.objectstore.errors import ArchiveError, ObjectDamaged, ObjectNotFound
from quorum_wal.objectstore.keys import TIMELINE_FILE, ArchivedWal, ArchiveKeys, timeline_prefix
from quorum_wal.objectstore.sealed import (
    SEAL,
    ZSTD_LEVEL,
    Seal,
    SealedPieces,
    seal,
    unseal,
    unseal_pieces,
)
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory, parse_history_file_name

#: Returns the content in pieces; each call returns all of it.
ReadPieces: TypeAlias = Callable[[], Iterable[bytes | memoryview]]


@dataclass(frozen=True, slots=True)
class ArchivedTimeline:
    """`timeline.json`: the facts that a restore needs when no safekeeper is left."""

    system_id: int
    pg_version: int
    wal_seg_size: int
    tli: int
    timeline_start_lsn: int

    @property
    def server(self) -> ServerFacts:
        return ServerFacts(self.system_id, self.pg_version, self.wal_seg_size)


#: Prepared by the import: msgspec crashes if several threads use a type first.
_PREPARED = msgspec.json.Decoder(ArchivedTimeline)


class TimelineArchive:
    """Thread-safe. `level` is zstd's; None stores content uncompressed. Every method raises
    ObjectStoreError."""

    def __init__(
        self,
        store: ObjectStore,
        timeline: TimelineId,
        facts: ArchivedTimeline,
        level: int | None = ZSTD_LEVEL,
    ) -> None:
        self.store = store
        self.timeline = timeline
        self.facts = facts
        self.keys = ArchiveKeys(timeline, facts.wal_seg_size)
        self._level = level

    @classmethod
    def open(cls, store: ObjectStore, timeline: TimelineId) -> TimelineArchive:
        """Opens an existing archive. Raises ObjectNotFound, ObjectDamaged."""
        key = timeline_prefix(timeline) + TIMELINE_FILE
        data = unseal(store.get(key), key)
        try:
            facts = msgspec.convert(msgspec.json.decode(data), ArchivedTimeline)
        except msgspec.MsgspecError as error:
            raise ObjectDamaged(f'object "{key}" is damaged: {error}') from error
        return cls(store, timeline, facts)

    @classmethod
    def create(
        cls,
        store: ObjectStore,
        timeline: TimelineId,
        facts: ArchivedTimeline,
        level: int | None = ZSTD_LEVEL,
    ) -> TimelineArchive:
        """Creates the archive, or opens it. Raises ArchiveError if it is another server's."""
        archive = cls(store, timeline, facts, level)
        key = timeline_prefix(timeline) + TIMELINE_FILE
        if not store.create(key, seal(msgspec.json.encode(asdict(facts)), None)):
            archive.check()
        return archive

    def check(self) -> None:
        """Raises ArchiveError if the store does not have this archive, or has another server's."""
        try:
            found = self.open(self.store, self.timeline).facts
        except ObjectNotFound as error:
            raise _not_there(self.store, self.timeline) from error
        if found != self.facts:
            raise ArchiveError(
                f"archive {self.store.url} has timeline {self.timeline} of another server: "
                f"expected {self.facts}, found {found}",
                hint="A timeline's name is never used twice; give this cluster its own folder.",
            )

    # ---- writing

    def put_history(self, history: TimelineHistory) -> None:
        content = history.format().encode()
        self._create(self.keys.history(history.tli), lambda: [content], len(content))

    def put_wal(self, wal: ArchivedWal, content: bytes | memoryview) -> bool:
        """`content` is the segment from its first byte to `end_lsn`. Returns whether the object is
        new. Raises ArchiveError."""
        return self.put_wal_pieces(wal, lambda: [content])

    def put_wal_pieces(self, wal: ArchivedWal, read: ReadPieces) -> bool:
        """Like `put_wal`, with content in pieces. `read` is called once, and again if the object
        exists or was truncated. Exceptions of `read` are passed to the caller."""
        length = wal.end_lsn - wal.segno * self.facts.wal_seg_size
        return self._create(self.keys.key(wal), read, length)

    def _create(self, key: str, read: ReadPieces, length: int) -> bool:
        sealed = SealedPieces(read, length, self._level)
        if self.store.create(key, sealed):
            return True
        try:
            found = Seal.decode(self.store.get_tail(key, SEAL.size), key)
        except ObjectNotFound:
            return self._create(key, read, length)  # another archiver, or a prune, has removed it
        except ObjectDamaged:
            self.store.put(key, sealed)  # a truncated object belongs to no log
            return True
        if not found.is_same_content(sealed.seal()):
            raise ArchiveError(
                f'object "{key}" in {self.store.url} exists with other content',
                hint="Two clusters write there, or it is damaged. Run sk archive verify.",
            )
        return False

    def drop_partials(self, tli: int, segno: int, below_lsn: int) -> None:
        """Deletes partial objects that a longer one or the whole segment contains."""
        for info in list(self.store.list(self.keys.partials(tli, segno))):
            wal = self.keys.parse_wal(info.key)
            if wal is not None and wal.end_lsn < below_lsn:
                self.store.delete(info.key)

    # ---- reading

    def histories(self) -> list[TimelineHistory]:
        """Of all timelines that have one, oldest first."""
        found = []
        for info in self.store.list(self.keys.histories):
            try:
                tli = parse_history_file_name(info.key.rpartition("/")[2])
            except WalError:
                continue  # a foreign object
            found.append(self.history(tli))
        return found

    def history(self, tli: int) -> TimelineHistory:
        """Raises ObjectNotFound for the first timeline, which has no history."""
        key = self.keys.history(tli)
        try:
            return TimelineHistory.parse(tli, unseal(self.store.get(key), key).decode())
        except (WalError, UnicodeDecodeError) as error:
            raise ObjectDamaged(f'object "{key}" is damaged: {error}') from error

    def newest_history(self) -> TimelineHistory:
        """The history of the newest timeline; empty for a server's first timeline."""
        histories = self.histories()
        return histories[-1] if histories else TimelineHistory(self.facts.tli, ())

    def wal(self, tli: int, after_segno: int = -1) -> Iterator[ArchivedWal]:
        """The WAL objects of one timeline, of segments above `after_segno`, in order."""
        after = self.keys.segment(tli, after_segno) + "~" if after_segno >= 0 else ""
        for info in self.store.list(self.keys.wal_of(tli), after):
            wal = self.keys.parse_wal(info.key)
            if wal is not None:
                yield wal

    def read(self, wal: ArchivedWal) -> bytes:
        """The segment from its first byte to `end_lsn`."""
        key = self.keys.key(wal)
        content = unseal(self.store.get(key), key)
        self._check_length(wal, len(content))
        return content

    def read_segment(self, tli: int, segno: int) -> bytes:
        """A whole segment. Raises ObjectNotFound."""
        return self.read(self._whole(tli, segno))

    def read_segment_pieces(self, tli: int, segno: int) -> Iterator[bytes]:
        """Like `read_segment`, in pieces. The content is verified only when the iteration has
        ended."""
        wal = self._whole(tli, segno)
        key = self.keys.key(wal)
        found = Seal.decode(self.store.get_tail(key, SEAL.size), key)
        self._check_length(wal, found.content_length)
        yield from unseal_pieces(self.store.get_pieces(key), found, key)

    def _whole(self, tli: int, segno: int) -> ArchivedWal:
        return ArchivedWal(tli, segno, (segno + 1) * self.facts.wal_seg_size)

    def _check_length(self, wal: ArchivedWal, length: int) -> None:
        expected = wal.end_lsn - wal.segno * self.facts.wal_seg_size
        if length != expected:
            raise ObjectDamaged(
                f'object "{self.keys.key(wal)}" is damaged: '
                f"expected {expected} bytes, found {length}"
            )

    def read_beginning(self, tli: int, segno: int) -> bytes:
        """The longest partial object of a segment. Raises ObjectNotFound if there is none, or if
        the whole segment has replaced it."""
        folder = self.keys.partials(tli, segno)
        while True:
            found = [self.keys.parse_wal(info.key) for info in self.store.list(folder)]
            longest = max((wal for wal in found if wal is not None), default=None, key=_end_lsn)
            if longest is None:
                raise ObjectNotFound(f'object "{folder}..." does not exist in {self.store.url}')
            try:
                return self.read(longest)
            except ObjectNotFound:
                continue  # a longer one has replaced it

    # ---- extent

    def archived_lsn(self, history: TimelineHistory, from_lsn: int) -> int:
        """The position up to which the log of `history` is archived without a gap, if it is
        archived up to `from_lsn`: the end of an object, or the timeline's start."""
        return self.extent(history, from_lsn)[0]

    def extent(self, history: TimelineHistory, from_lsn: int) -> tuple[int, list[ArchivedWal]]:
        """Like `archived_lsn`, with the objects; each begins at its predecessor's end or in the
        same segment."""
        seg_size, lsn, chain = self.facts.wal_seg_size, from_lsn, list[ArchivedWal]()
        first = from_lsn // seg_size
        found: dict[int, list[ArchivedWal]] = {}
        for tli in self._tlis_from(history, from_lsn):
            for wal in self.wal(tli, first - 1):
                found.setdefault(wal.segno, []).append(wal)
        for segno in range(first, max(found, default=first - 1) + 1):
            best = max(
                (wal for wal in found.get(segno, ()) if self._is_of(history, wal)),
                default=None,
                key=_end_lsn,
            )
            if best is None or best.end_lsn <= lsn:
                break
            chain.append(best)
            lsn = best.end_lsn
            if lsn % seg_size:
                break
        return lsn, chain

    def first_lsn(self, history: TimelineHistory, from_lsn: int) -> int | None:
        """The start of the first segment at or after `from_lsn`; None if there is none."""
        segno = from_lsn // self.facts.wal_seg_size
        firsts = [
            next((wal for wal in self.wal(tli, segno - 1) if self._is_of(history, wal)), None)
            for tli in self._tlis_from(history, from_lsn)
        ]
        segnos = [wal.segno for wal in firsts if wal is not None]
        return min(segnos) * self.facts.wal_seg_size if segnos else None

    def _tlis_from(self, history: TimelineHistory, lsn: int) -> list[int]:
        """The timelines that wrote WAL at `lsn` or after it."""
        tlis = [*(entry.tli for entry in history.entries), history.tli]
        starts = [0, *(int(entry.switch_lsn) for entry in history.entries)]
        return tlis[max(0, bisect_right(starts, lsn) - 1) :]

    def _is_of(self, history: TimelineHistory, wal: ArchivedWal) -> bool:
        """Whether every byte of an object belongs to this history's log."""
        return history.tli_at(wal.end_lsn - 1) == wal.tli


def _end_lsn(wal: ArchivedWal) -> int:
    return wal.end_lsn


def check_present(store: ObjectStore, timeline: TimelineId) -> None:
    """Raises ArchiveError if the store does not have the archive of the timeline. Callers check
    before they write: a file system that is not mounted is an empty folder, and a write there
    would seem to succeed."""
    try:
        store.get_tail(timeline_prefix(timeline) + TIMELINE_FILE, SEAL.size)
    except ObjectNotFound as error:
        raise _not_there(store, timeline) from error


def _not_there(store: ObjectStore, timeline: TimelineId) -> ArchiveError:
    return ArchiveError(
        f"{store.url} does not have the archive of timeline {timeline} any more; is its file "
        "system mounted?",
        hint="Mount it. If the archive was deleted, restart the safekeepers with --archive-begin, "
        "and take a base backup.",
    )


def find_timelines(store: ObjectStore) -> list[TimelineId]:
    """The timelines that have an archive in this store. Raises ObjectStoreError."""
    found = []
    for tenant in store.list_folders(""):
        for timeline in store.list_folders(f"{tenant}/"):
            try:
                found.append(TimelineId.parse(f"{tenant}/{timeline}"))
            except MessageError:
                continue  # a foreign folder
    return found


def require_archive(store: ObjectStore, wanted: TimelineId | None) -> TimelineArchive:
    """The archive of the wanted timeline, or of the only one.

    Raises ArchiveError if there is none, or if there are several; ObjectStoreError.
    """
    if wanted is None:
        found = find_timelines(store)
        if len(found) != 1:
            names = ", ".join(map(str, found))
            raise ArchiveError(
                f"archive {store.url} has {len(found)} timelines{': ' if names else ''}{names}",
                hint="Name one with --timeline TENANT/TIMELINE."
                if found
                else "Safekeepers that run with --archive create one within seconds of sk attach.",
            )
        wanted = found[0]
    try:
        return TimelineArchive.open(store, wanted)
    except ObjectNotFound as error:
        raise ArchiveError(
            f"archive {store.url} has no timeline {wanted}",
            hint="Run sk archive status to list the timelines.",
        ) from error
