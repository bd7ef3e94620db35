"""`ChangeSet`: the changes of some transactions, copied out of the WAL.

    scans --add--> changes (fields, rows), in the order of the WAL; their tuples in one byte array

Only changes of the requested transactions are kept, so a long history costs nothing but reading. If
a record has only a part of a tuple, the tuple is completed here from its page, one at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from quorum_wal.pgwal.block_ref import BlockRef
from quorum_wal.pgwal.record import HEADER, RecordHeader
from quorum_wal.spark.changes.change_files import FOREIGN, UNKNOWN, FileMap
from quorum_wal.spark.changes.heap_fields import (
    CHANGE_FIELDS,
    DATABASE,
    DROP_FILE,
    DROPPED,
    DROPPED_AT,
    INSERT,
    LSN,
    MARK_LSN,
    MARK_XID,
    MESSAGE,
    NEW_AT,
    NEW_LENGTH,
    NEW_PAGE,
    OLD_AT,
    OLD_LENGTH,
    OPERATION,
    PAGE_IMAGE,
    PREFIX,
    RECORD,
    RELFILENODE,
    SEQ,
    SUFFIX,
    TRUNCATE,
    UPDATE,
)
from quorum_wal.spark.changes.heap_follower import HeapFollower
from quorum_wal.spark.changes.heap_page import is_heap_page, restore_page
from quorum_wal.spark.changes.heap_pages import HeapPages
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.page_file import LastRecord, PagesLost
from quorum_wal.spark.changes.page_keeper import PageKeeper, record_of
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.loads import Bytes, Int, Numbers
from quorum_wal.walrecords.record_index import Array, RecordIndex

#: rows after those of a scan: the transaction's number, the file's code, the oid of TRUNCATE
COMMIT, CODE, OID, FIELDS = CHANGE_FIELDS, CHANGE_FIELDS + 1, CHANGE_FIELDS + 2, CHANGE_FIELDS + 3

#: zeros after the tuples, because numbers are loaded before their length is checked
TUPLES_ROOM = 16
_FILE = np.dtype([("tablespace", "<u4"), ("database", "<u4"), ("relfilenode", "<u4")])


@dataclass(frozen=True, slots=True)
class Gathered:
    """`notes` say what is wrong with a row. The tuples in `data` follow one unused byte, and
    TUPLES_ROOM zeros follow them."""

    changes: Array
    data: Array
    notes: dict[int, str]


class ChangeSet:
    """Scans must be added in the order of the WAL. `pages` is None or collects their tuples, and
    `keeper` stores them. `first` is the first record, if it is known; `add` raises PagesLost if the
    WAL has another one."""

    def __init__(
        self,
        files: FileMap,
        commits: Commits,
        pages: HeapPages | None,
        keeper: PageKeeper | None = None,
        first: LastRecord | None = None,
    ) -> None:
        self._files = files
        self._commits = commits
        self._pages = pages
        self._keeper = keeper
        self._first = first
        self._parts: list[Array] = []
        self._buffers: list[Array] = []
        self._length = 0
        self._rows = 0
        self._notes: dict[int, str] = {}
        #: the start of the last record that was added
        self._last_lsn: int | None = None

    def add(self, scan: HeapScan) -> None:
        self._forget_pages_at_gap(scan.index)
        codes = self._files.codes_of(scan.changes[DATABASE], scan.changes[RELFILENODE])
        commits = self._commits.numbers_of_changes(scan.changes)
        operation = scan.changes[OPERATION]
        kept = (commits >= 0) & ((codes >= 0) | (codes == UNKNOWN)) & (operation != PAGE_IMAGE)
        kept &= (operation != TRUNCATE) & ((operation == INSERT) | (codes & 1 == 0))
        kept |= (operation == MESSAGE) & (commits >= 0)
        followed = self._followed(scan, kept, codes)
        chosen = np.flatnonzero(kept)
        rows = np.empty((FIELDS, len(chosen)), np.int64)
        rows[:CHANGE_FIELDS] = scan.changes[:, chosen]
        rows[COMMIT], rows[CODE], rows[OID] = commits[chosen], codes[chosen], 0
        buffer = _take_tuples(scan.index.data, rows, self._length)
        self._append(rows, buffer)
        places = {int(row): place for place, row in enumerate(chosen.tolist())} if followed else {}
        for row, found in followed.items():
            if row in places:
                self._complete(rows, places[row], *found)
        self._forget_index_pages(scan, rows)
        is_ours = (commits >= 0) & (codes != FOREIGN)
        truncated = np.flatnonzero((operation == TRUNCATE) & is_ours)
        if len(truncated):
            self._add_truncated(scan, truncated, commits)
        if self._pages is not None:
            self._add_dropped(scan)

    @property
    def size_bytes(self) -> int:
        """Of rows and tuples."""
        return 8 * FIELDS * self._rows + self._length

    def gathered(self) -> Gathered:
        """The changes since the last call. Empties the set."""
        changes = np.empty((FIELDS, self._rows), np.int64)
        _move(self._parts, changes)
        data = np.empty(1 + self._length + TUPLES_ROOM, np.uint8)
        data[0], data[-TUPLES_ROOM:] = 0, 0
        _move(self._buffers, data[1:-TUPLES_ROOM])
        found = Gathered(changes, data, self._notes)
        self._rows, self._length, self._notes = 0, 0, {}
        return found

    def _append(self, rows: Array, buffer: Array) -> None:
        self._parts.append(rows)
        self._buffers.append(buffer)
        self._length += len(buffer)
        self._rows += rows.shape[1]

    def _forget_pages_at_gap(self, index: RecordIndex) -> None:
        """Lost WAL, which the back link of the next record shows, may have changed any page."""
        header = index.data[index.at[0] :][: HEADER.size].tobytes()
        first = RecordHeader(*HEADER.unpack(header))
        if self._last_lsn is None and self._first not in (None, record_of(index, 0)):
            raise PagesLost("a file of pages is of other WAL")
        if self._pages is not None and self._last_lsn not in (None, first.prev_lsn):
            self._pages.clear()
        self._last_lsn = int(index.start_lsn[-1])

    # ---- tuples that are not complete in their record

    def _followed(
        self, scan: HeapScan, kept: Array, codes: Array
    ) -> dict[int, tuple[bytes | str, bytes | None]]:
        """row -> (its new tuple or what is wrong, its old tuple)."""
        changes = scan.changes
        is_change = (changes[OPERATION] == INSERT) | (changes[OPERATION] == UPDATE)
        partial = is_change & (
            (changes[NEW_LENGTH] == 0) | (changes[PREFIX] > 0) | (changes[SUFFIX] > 0)
        )
        if self._pages is None:
            chosen, pages = kept & partial & (codes >= 0), HeapPages()
        else:
            chosen, pages = codes >= 0, self._pages
        follower = HeapFollower(scan, pages)
        rows = np.flatnonzero(chosen)
        begin = len(rows)
        if self._keeper is not None and self._keeper.add(scan):
            begin = int(np.searchsorted(changes[LSN, rows], self._keeper.lsn))
        followed = {row: follower.follow(row) for row in rows[:begin].tolist()}
        if begin < len(rows):
            self.keep_pages()
            followed |= {row: follower.follow(row) for row in rows[begin:].tolist()}
        return {
            row: (new if isinstance(new, str) or partial[row] else b"", old)
            for row, (new, old) in followed.items()
        }

    def keep_pages(self) -> None:
        """Stores the pages for the next batch, if they are not stored yet. Raises PagesLost,
        SpillError."""
        if self._keeper is not None:
            assert self._pages is not None
            self._keeper.put(self._pages, self._files.followed)

    def _complete(self, rows: Array, place: int, new: bytes | str, old: bytes | None) -> None:
        """Appends a completed tuple to the data."""
        if isinstance(new, str):
            self._notes[self._rows - rows.shape[1] + place] = new
            rows[NEW_LENGTH, place] = 0
        elif new:
            rows[NEW_AT, place], rows[NEW_LENGTH, place] = self._put(new), len(new)
        if old and rows[OLD_LENGTH, place] == 0:
            rows[OLD_AT, place], rows[OLD_LENGTH, place] = self._put(old), len(old)

    def _put(self, stored: bytes) -> int:
        self._buffers.append(np.frombuffer(stored, np.uint8))
        self._length += len(stored)
        return 1 + self._length - len(stored)

    # ---- records without tuples

    def _forget_index_pages(self, scan: HeapScan, rows: Array) -> None:
        """A new page of an unknown file matters only if it is a page of a table."""
        unknown = np.flatnonzero((rows[OPERATION] == NEW_PAGE) & (rows[CODE] == UNKNOWN))
        is_heap: dict[int, bool] = {}
        for place in unknown.tolist():
            file = int(rows[RELFILENODE, place])
            if file not in is_heap:
                block = scan.body(int(rows[RECORD, place])).blocks[0]
                is_heap[file] = _is_heap(block)
            if not is_heap[file]:
                rows[OPERATION, place] = PAGE_IMAGE

    def _add_truncated(self, scan: HeapScan, truncated: Array, commits: Array) -> None:
        for row in truncated.tolist():
            main_data = scan.body(int(scan.changes[RECORD, row])).main_data
            oids = np.frombuffer(main_data, "<u4", offset=12).astype(np.int64)
            oids = oids[: int.from_bytes(main_data[4:8], "little")]
            rows = np.zeros((FIELDS, len(oids)), np.int64)
            rows[:CHANGE_FIELDS] = scan.changes[:, row : row + 1]
            rows[COMMIT], rows[OID], rows[SEQ] = commits[row], oids, np.arange(len(oids))
            self._append(rows, np.empty(0, np.uint8))

    def _add_dropped(self, scan: HeapScan) -> None:
        """Files of tables that commits delete. Without logical decoding nothing else may show that
        a table was truncated."""
        marks = scan.marks[:, scan.marks[DROPPED] > 0]
        numbers = self._commits.numbers_of(marks[MARK_XID])
        for place in np.flatnonzero(numbers >= 0).tolist():
            at, count = int(marks[DROPPED_AT, place]), int(marks[DROPPED, place])
            files = scan.index.data[at : at + _FILE.itemsize * count].view(_FILE)
            codes = self._files.codes_of(
                files["database"].astype(np.int64), files["relfilenode"].astype(np.int64)
            )
            dropped = np.flatnonzero((codes >= 0) & (codes & 1 == 0))
            rows = np.zeros((FIELDS, len(dropped)), np.int64)
            rows[LSN], rows[OPERATION], rows[SEQ] = marks[MARK_LSN, place], DROP_FILE, dropped
            rows[COMMIT], rows[CODE] = numbers[place], codes[dropped]
            self._append(rows, np.empty(0, np.uint8))


def _move(parts: list[Array], whole: Array) -> None:
    """Moves one part after the other, so that they are not in memory twice."""
    begin = 0
    parts.reverse()
    while parts:
        part = parts.pop()
        end = begin + part.shape[-1]
        whole[..., begin:end] = part
        begin = end


def _is_heap(block: BlockRef) -> bool:
    return block.image is not None and is_heap_page(restore_page(block.image))


def _take_tuples(data: Array, rows: Array, base: int) -> Array:
    """Copies the tuples into one array. Their offsets in `rows` then are those in all arrays
    joined, which begin with one unused byte."""
    buffer = np.empty(int(rows[NEW_LENGTH].sum() + rows[OLD_LENGTH].sum()), np.uint8)
    used = _copy_tuples(data, rows[NEW_AT], rows[NEW_LENGTH], buffer, 0, base + 1)
    _copy_tuples(data, rows[OLD_AT], rows[OLD_LENGTH], buffer, used, base + 1)
    return buffer


@njit(cache=True, nogil=True)
def _copy_tuples(
    data: Bytes, at: Numbers, length: Numbers, buffer: Bytes, used: Int, base: Int
) -> Int:
    """Copies after buffer[:used]. Returns the new `used`."""
    for i in range(len(at)):
        copy_bytes(buffer, used, data, at[i], length[i])
        at[i] = base + used
        used += length[i]
    return used
