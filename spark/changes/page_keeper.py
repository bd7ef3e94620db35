"""`PageKeeper`: stores the pages at one position while a task follows them, for the next batch.

    start of the state before              `lsn`       end of the range
     |---- pages that change are stored ----|---- ------|
                                            ^ the first change of a transaction that is still open

The next batch may need the pages before the first change of each transaction that commits in it. So
the state is that of the first open change, or of the end.
"""

from __future__ import annotations

import numpy as np

from quorum_wal.pgwal.record import HEADER, RecordHeader
from quorum_wal.spark.changes.heap_pages import HeapPages
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.spark.changes.page_file import LastRecord, PageState
from quorum_wal.spark.changes.page_folder import KeptPages, PageFolder
from quorum_wal.spark.changes.transaction_summary import redo_before
from quorum_wal.walrecords.record_index import Array, RecordIndex


class PageKeeper:
    """`lsn` is the position of the new state. `before` is the state on which it is based; without
    one, all pages that change from `begin_lsn` on, the redo LSN of a checkpoint, are followed."""

    def __init__(
        self, folder: PageFolder, system_id: int, lsn: int, begin_lsn: int, before: KeptPages | None
    ) -> None:
        self.lsn = lsn
        self._folder = folder
        self._system_id = system_id
        self._begin_lsn = begin_lsn if before is None else before.state.end_lsn
        self._redo_lsn = begin_lsn if before is None else before.state.redo_lsn
        self._before = before
        self._last: LastRecord | None = None
        self._is_done = lsn <= self._begin_lsn

    def add(self, scan: HeapScan) -> bool:
        """Whether the position is in this scan: then `put` must be called when the changes before
        it are followed, and before the others are."""
        if self._is_done:
            return False
        index = scan.index
        count = int(np.searchsorted(index.start_lsn, self.lsn))
        if count:
            self._last = record_of(index, count - 1)
        self._redo_lsn = redo_before(scan, self.lsn) or self._redo_lsn
        return count < len(index)

    def put(self, pages: HeapPages, files: Array) -> None:
        """Stores them, once. Raises SpillError, PagesLost."""
        if self._is_done:
            return
        self._is_done = True
        if self._last is None or not pages.is_complete:
            return
        state = PageState(self._system_id, self._begin_lsn, self.lsn, self._redo_lsn, self._last)
        self._folder.put(state, files, pages.changed(), self._before)


def record_of(index: RecordIndex, number: int) -> LastRecord:
    """What identifies a record."""
    header = index.data[index.at[number] :][: HEADER.size].tobytes()
    crc = RecordHeader(*HEADER.unpack(header)).crc
    return LastRecord(int(index.start_lsn[number]), crc, int(index.tli[number]))
