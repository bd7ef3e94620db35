"""`CatalogFollower`: follows the changes of the system catalogs in the WAL, from a snapshot on.

    scans --HeapFollower--> rows of the catalogs, by transaction --COMMIT--> SchemaHistory

The catalogs are ordinary heaps, but their changes are never written for logical decoding. So their
pages are followed, from a checkpoint's redo point on, where each page that changes has an image.

Laws. A transaction counts when it commits, without its subtransactions that were rolled back; the
snapshot decides which transactions it has seen. Changes of the catalogs between which a transaction
writes no rows of tables are one step, because no row is written with a definition in between.
Updates in place (`relfrozenxid`, statistics) are not followed: they keep the length of a row, and
no field of `catalog_rows.py` changes. A rewritten catalog (VACUUM FULL, CLUSTER) is known from the
row of its new heap, whose file has the oid of the heap. Source: Postgres `heap.c`, `cluster.c`,
`tablecmds.c`, `relmapper.c`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from quorum_wal.pgwal.record import HEADER, RecordHeader
from quorum_wal.spark.changes.advanced_catalog import advanced_catalog
from quorum_wal.spark.changes.catalog import Catalog
from quorum_wal.spark.changes.catalog_decoder import CatalogDecoder
from quorum_wal.spark.changes.catalog_rows import ROW_OF, ClassRow, Row
from quorum_wal.spark.changes.catalog_state import FIRST_NORMAL_OID, CatalogState
from quorum_wal.spark.changes.datum_varlena import DatumError
from quorum_wal.spark.changes.heap_fields import (
    ABORT,
    COMMIT,
    COMMIT_PREPARED,
    DATABASE,
    DELETE,
    INSERT,
    LSN,
    MARK_KIND,
    MARK_LSN,
    MARK_XID,
    NEW_PAGE,
    OPERATION,
    PAGE_IMAGE,
    RELFILENODE,
    SUBXIDS,
    TRUNCATE,
    UPDATE,
    XID,
)
from quorum_wal.spark.changes.heap_follower import HeapFollower
from quorum_wal.spark.changes.heap_pages import HeapPages
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.schema_history import SchemaHistory
from quorum_wal.spark.changes.schema_steps import CatalogChange, SchemaSteps
from quorum_wal.spark.changes.transaction_commits import ended_xids, subxids_of
from quorum_wal.walrecords.record_index import Array, RecordIndex

_PG_CATALOG = 11
_ROWS = (INSERT, UPDATE, DELETE)
_ENDS = (COMMIT, COMMIT_PREPARED, ABORT)
_HALF = 1 << 31


@dataclass(frozen=True, slots=True)
class _Visibility:
    """Which transactions the snapshot has seen."""

    lsn: int
    after_lsn: int
    xmax: int | None
    running: frozenset[int]

    def has_seen(self, xid: int, commit_lsn: int) -> bool:
        if self.xmax is None:
            return commit_lsn < self.lsn
        if commit_lsn >= self.after_lsn:
            return False
        distance = (xid - self.xmax + _HALF) % (1 << 32) - _HALF
        return distance < 0 and xid not in self.running


class CatalogFollower:
    """Scans must be added in the order of the WAL, the first one at the start of the search."""

    def __init__(self, catalog: Catalog) -> None:
        rows = catalog.rows
        assert rows is not None
        self.catalog = catalog
        self._database = catalog.database_oid
        self._visibility = _Visibility(
            catalog.lsn, rows.after_lsn, rows.xmax, frozenset(x % (1 << 32) for x in rows.running)
        )
        self._decoders = {oid: CatalogDecoder(oid, layout) for oid, layout in rows.layouts.items()}
        #: the files of the catalogs, also those of their new heaps
        self._files = {file: oid for oid, layout in rows.layouts.items() for file in layout.files}
        self._pages = HeapPages()
        self._pending: dict[int, list[CatalogChange]] = {}
        #: xid -> after how many changes of catalogs it wrote rows of other tables
        self._writes: dict[int, set[int]] = {}
        self._count = 0
        self._last_lsn = 0
        self._steps = SchemaSteps(catalog, CatalogState(rows, catalog.types))

    @property
    def history(self) -> SchemaHistory:
        return self._steps.history

    def catalog_at(self, lsn: int, redo_lsn: int) -> Catalog:
        """The catalog at `lsn`, up to which all scans were added."""
        return advanced_catalog(
            self.catalog, self._steps.state, self._files, self.history, lsn, redo_lsn
        )

    def add(self, scan: HeapScan) -> None:
        """Raises WalFormatError."""
        self._forget_pages_at_gap(scan.index)
        follower, from_lsn = HeapFollower(scan, self._pages), 0
        while True:
            rows = self._rows_of_catalogs(scan, from_lsn)
            if not len(rows) and not self._pending:
                return
            added = self._count_writes(scan, rows, from_lsn)
            next_lsn = self._follow(scan, follower, rows, from_lsn)
            if next_lsn is None:
                break
            # A catalog has a new file from here on, whose changes were counted as other rows.
            from_lsn = next_lsn
            for lsn, xid, count in added:
                if lsn >= from_lsn:
                    self._writes.get(xid, set()).discard(count)
        if not self._pending:
            self._writes.clear()
        for xid in self._writes.keys() & set(ended_xids(scan).tolist()):
            del self._writes[xid]

    def _forget_pages_at_gap(self, index: RecordIndex) -> None:
        """Lost WAL may have changed any page."""
        header = index.data[index.at[0] :][: HEADER.size].tobytes()
        if RecordHeader(*HEADER.unpack(header)).prev_lsn != self._last_lsn:
            self._pages.clear()
        self._last_lsn = int(index.start_lsn[-1])

    def _is_catalog(self, scan: HeapScan) -> Array:
        files = np.array(sorted(self._files), np.int64)
        is_database = scan.changes[DATABASE] == self._database
        found: Array = np.isin(scan.changes[RELFILENODE], files) & is_database
        return found

    def _rows_of_catalogs(self, scan: HeapScan, from_lsn: int) -> Array:
        operations = (*_ROWS, NEW_PAGE, PAGE_IMAGE)
        chosen = self._is_catalog(scan) & np.isin(scan.changes[OPERATION], operations)
        found: Array = np.flatnonzero(chosen & (scan.changes[LSN] >= from_lsn))
        return found

    def _count_writes(
        self, scan: HeapScan, rows: Array, from_lsn: int
    ) -> list[tuple[int, int, int]]:
        """Notes after which changes of catalogs each transaction writes rows of other tables.
        Returns the notes that are new: (first LSN, xid, count)."""
        changes = scan.changes
        is_change = np.isin(changes[OPERATION, rows], _ROWS)
        lsns = changes[LSN, rows[is_change]]
        begin_lsn = from_lsn if self._pending else max(from_lsn, int(lsns[0]) if len(lsns) else 0)
        if not self._pending and not len(lsns):
            return []
        writes = np.isin(changes[OPERATION], (*_ROWS, TRUNCATE)) & (changes[LSN] >= begin_lsn)
        writes &= (changes[DATABASE] == self._database) & ~self._is_catalog(scan)
        writes &= (changes[RELFILENODE] >= FIRST_NORMAL_OID) | (changes[OPERATION] == TRUNCATE)
        writes &= ~np.isin(changes[RELFILENODE], self._steps.ignored_files())
        chosen = np.flatnonzero(writes)
        counts = self._count + np.searchsorted(lsns, changes[LSN, chosen], "right")
        pairs, first = np.unique(
            np.stack((changes[XID, chosen], counts)), axis=1, return_index=True
        )
        added = []
        for lsn, (xid, count) in zip(
            changes[LSN, chosen[first]].tolist(), pairs.T.tolist(), strict=True
        ):
            mine = self._writes.setdefault(xid, set())
            if count not in mine:
                mine.add(count)
                added.append((lsn, xid, count))
        return added

    def _follow(
        self, scan: HeapScan, follower: HeapFollower, rows: Array, from_lsn: int
    ) -> int | None:
        """Follows rows and ends of transactions in their order. Returns the LSN after which a
        catalog has another file, which must be followed, too."""
        ends = self._ends(scan, from_lsn)
        end_lsn, mark = next(ends, (None, -1))
        for row in rows.tolist():
            lsn = int(scan.changes[LSN, row])
            while end_lsn is not None and end_lsn < lsn:
                self._end(scan, mark)
                end_lsn, mark = next(ends, (None, -1))
            if self._change(scan, follower, row, lsn):
                return lsn + 1
        while end_lsn is not None:
            self._end(scan, mark)
            end_lsn, mark = next(ends, (None, -1))
        return None

    def _ends(self, scan: HeapScan, from_lsn: int) -> Iterator[tuple[int, int]]:
        kinds, lsns = scan.marks[MARK_KIND], scan.marks[MARK_LSN]
        for mark in np.flatnonzero(np.isin(kinds, _ENDS) & (lsns >= from_lsn)).tolist():
            yield int(lsns[mark]), mark

    def _change(self, scan: HeapScan, follower: HeapFollower, row: int, lsn: int) -> bool:
        """Whether the row shows a new file of a catalog."""
        stored, replaced = follower.follow(row)
        operation = int(scan.changes[OPERATION, row])
        if operation not in _ROWS:
            return False
        self._count += 1
        decoder = self._decoders[self._files[int(scan.changes[RELFILENODE, row])]]
        change = _decoded(decoder, lsn, self._count, operation, stored, replaced)
        self._pending.setdefault(int(scan.changes[XID, row]), []).append(change)
        new = change.new
        if operation != INSERT or not isinstance(new, ClassRow) or not new.relrewrite:
            return False  # a later change of the row gives the heap the old file of the table
        self._steps.add_new_heap(new)
        is_new = new.relrewrite in ROW_OF and new.file not in self._files
        if is_new and new.relnamespace == _PG_CATALOG:
            self._files[new.file] = new.relrewrite
            return True
        return False

    def _end(self, scan: HeapScan, mark: int) -> None:
        """The end of a transaction or of a subtransaction."""
        if not self._pending:
            return
        marks = scan.marks
        xid, lsn = int(marks[MARK_XID, mark]), int(marks[MARK_LSN, mark])
        members = [xid]
        if marks[SUBXIDS, mark]:
            members += subxids_of(scan, marks, mark).tolist()
        changes = [change for each in members for change in self._pending.pop(each, ())]
        if marks[MARK_KIND, mark] == ABORT or not changes or self._visibility.has_seen(xid, lsn):
            return
        changes.sort(key=lambda change: change.count)
        writes = sorted({count for each in members for count in self._writes.get(each, ())})
        self._steps.commit(lsn, _steps(changes, writes))


def _decoded(
    decoder: CatalogDecoder, lsn: int, count: int, operation: int, stored: bytes | str,
    replaced: bytes | None,
) -> CatalogChange:  # fmt: skip
    """A change with the rows before and after it, or with what is wrong."""
    new: Row | None = None
    old: Row | None = None
    try:
        if isinstance(stored, str):
            raise DatumError(stored)
        if stored:
            new = decoder.decode(stored)
        if replaced is not None:
            old = decoder.decode(replaced)
        elif operation == DELETE:
            raise DatumError("the deleted row is not in the WAL")
    except DatumError as error:
        return CatalogChange(lsn, count, None, None, str(error))
    return CatalogChange(lsn, count, old, new)


def _steps(changes: list[CatalogChange], writes: list[int]) -> list[list[CatalogChange]]:
    """The changes, divided where the transaction wrote rows of other tables."""
    steps = [[changes[0]]]
    for before, change in pairwise(changes):
        place = bisect_left(writes, before.count)
        if place < len(writes) and writes[place] < change.count:
            steps.append([])
        steps[-1].append(change)
    return steps
