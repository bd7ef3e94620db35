"""`PageWal`: the records of a range that a server must replay to obtain one page.

    needed    all that touch the page, however they do
              checkpoints, the end of recovery, changed parameters     by which the replay proceeds
              CLOG, MultiXact, CommitTs       pages of them are read when a server is promoted

Law: with these records alone, replay leaves the same page. Records that truncate or drop the file
also change which of its blocks exist, and depend on others. Then there is no such set, and the
whole WAL must be replayed; also if the records are too many, or on several timelines, or if there
is no room between them to zero the other pages that they write (`sparse_wal.py`).
Source: Postgres `rm_redo` of each resource manager; `TrimCLOG`, `TrimMultiXact`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pageserver.epochs.page_files import Give
from quorum_wal.pageserver.epochs.sparse_wal import (
    ZEROED_MAX,
    PageRef,
    SparseWal,
    WalRecord,
    zeroing_bytes,
)
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.touches import Database, Touches
from quorum_wal.pageserver.pitr.page_touch_scan import Touch, page_touches
from quorum_wal.pageserver.pitr.promoted_server import StopPoint
from quorum_wal.pgwal.page import usable_position
from quorum_wal.pgwal.record import aligned
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.walrecords.record_index import RecordIndex
from quorum_wal.walrecords.record_survey import (
    FORK_MASK,
    HAS_IMAGE,
    IMAGE_INFO_OFFSET,
    WILL_INIT,
    RecordSurvey,
)

#: Above one of them, to write the records would take longer than to replay the whole WAL.
RECORDS_MAX, RECORD_BYTES_MAX = 50_000, 64 << 20

_XLOG, _SMGR, _CLOG, _MULTIXACT, _COMMIT_TS = 0, 2, 3, 6, 18
#: CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE, PARAMETER_CHANGE, END_OF_RECOVERY, CHECKPOINT_REDO
_XLOG_NEEDED = (0x0, 0x1, 0x6, 0x9, 0xE)
_SMGR_CREATE = 0x1


def _needed_operations() -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    needed = np.zeros(1 << 12, np.bool_)  # by rmgr id << 4 | the upper bits of info
    for op in _XLOG_NEEDED:
        needed[_XLOG << 4 | op] = True
    for rmgr in (_CLOG, _MULTIXACT, _COMMIT_TS):
        needed[rmgr << 4 : (rmgr + 1) << 4] = True
    return needed


_NEEDED = _needed_operations()


class PageWal:
    """Takes the records of a range of `server`'s WAL in order, for block `block` of `fork`."""

    def __init__(self, server: ServerFacts, fork: Fork, block: int) -> None:
        self._server = server
        self._fork, self._block = fork, block
        self._image_apply = wal_version(server.pg_major).image_apply
        self._records: list[WalRecord] = []
        self._record_bytes = 0
        self._is_complete = True
        self._tlis: set[int] = set()
        self._written: set[PageRef] = set()
        self._end_position = 0

    def feed(self, index: RecordIndex, survey: RecordSurvey) -> None:
        """Raises SurveyError if a record cannot be decoded."""
        if not self._is_complete or not len(index):
            return
        facts = survey.facts
        touches = page_touches(index, survey, self._fork, self._block)
        if any(
            how & Touch.FILE and not _creates(int(facts.operation[row])) for row, how in touches
        ):
            return self._give_up()
        self._tlis.update(np.unique(index.tli).tolist())
        rows = {row for row, _ in touches} | set(np.flatnonzero(_NEEDED[facts.operation]).tolist())
        for row in sorted(rows):
            at, record = int(index.at[facts.record[row]]), int(facts.record[row])
            content = index.data[at : at + int(facts.length[row])].tobytes()
            if not self._add(int(index.start_lsn[record]), content):
                return self._give_up()
            self._written.update(self._writes(index, survey, row))
        return None

    def _writes(self, index: RecordIndex, survey: RecordSurvey, row: int) -> Iterator[PageRef]:
        """The other pages that the record writes as a whole."""
        data, places, offsets = index.data, survey.places, survey.facts.block_offsets
        fork = self._fork
        wanted = PageRef(fork.tablespace, fork.database, fork.number, fork.kind, self._block)
        for reference in range(int(offsets[row]), int(offsets[row + 1])):
            head = int(places.header_at[reference])
            flags = int(data[head + 1])
            has_image = flags & HAS_IMAGE and int(data[head + IMAGE_INFO_OFFSET])
            if not (flags & WILL_INIT or has_image & self._image_apply):
                continue
            place, number = int(places.relation_at[reference]), int(places.number_at[reference])
            tablespace, database, file = data[place : place + 12].view(np.uint32).tolist()
            (block,) = data[number : number + 4].view(np.uint32).tolist()
            page = PageRef(tablespace, database, file, flags & FORK_MASK, block)
            if page != wanted:
                yield page

    def _add(self, start_lsn: int, content: bytes) -> bool:
        """False if the records are too many, or if there is no room before this one to zero what
        those before have written. If it follows directly, no record is left out between them."""
        position = usable_position(start_lsn, self._server.wal_seg_size)
        room = position - self._end_position
        zeroed: tuple[PageRef, ...] = ()
        if room and self._written:
            zeroed = tuple(sorted(self._written))
            if len(zeroed) > ZEROED_MAX or room < zeroing_bytes(len(zeroed)):
                return False
            self._written.clear()
        self._records.append(WalRecord(start_lsn, content, zeroed))
        self._record_bytes += len(content)
        self._end_position = aligned(position + len(content))
        return len(self._records) <= RECORDS_MAX and self._record_bytes <= RECORD_BYTES_MAX

    def _give_up(self) -> None:
        self._is_complete = False
        self._records.clear()

    def is_enough(self, fork: Fork, block: int, tli: int, touches: Touches) -> bool:
        """Whether the replay of these records leaves that page as the replay of all does, which
        ends on timeline `tli` and changes what `touches` says."""
        database = Database(fork.tablespace, fork.database)
        return (
            self._is_complete
            and (fork, block) == (self._fork, self._block)
            and self._tlis == {tli}
            and database not in touches.fresh_databases
            and fork.tablespace not in touches.tablespaces_dropped
            and all(fork.tablespace != created.oid for created in touches.tablespaces_created)
        )

    def write(self, redo_lsn: int, stop: StopPoint, folder: Path, give: Give) -> StopPoint:
        """Writes segments with these records into a server's pg_wal, for a replay from `redo_lsn`
        on. Returns where it stops: at the same position, perhaps with another record."""
        wal = SparseWal(self._server, stop.tli, redo_lsn, folder, give)
        for record in self._records:
            wal.append(record)
        return StopPoint(wal.finish(stop.end_lsn), stop.end_lsn, stop.tli)


def _creates(operation: int) -> bool:
    return operation == _SMGR << 4 | _SMGR_CREATE
