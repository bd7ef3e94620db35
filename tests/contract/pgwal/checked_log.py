"""`CheckedLog`: the log of a server, decoded by us and by pg_waldump."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, zip_longest

from wal_folder import WalFolder
from waldump import Dump, dump

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, page_header_size
from quorum_wal.pgwal.record import RECORD_HEADER_SIZE, XLOG_OVERWRITE_CONTRECORD, Record
from quorum_wal.pgwal.rmgr import RM_XLOG_ID
from quorum_wal.pgwal.walker import NEED_DATA, RecordWalker

CHUNK = 128 * 1024
BLOCKS_EVERY = 20


@dataclass(frozen=True)
class CheckedLog:
    """Both views are computed at the first use; the log does not change any more."""

    folder: WalFolder
    compression_methods: tuple[str, ...] = ()

    @cached_property
    def dump(self) -> Dump:
        return dump(self.folder, blocks_every=BLOCKS_EVERY)

    @cached_property
    def walk(self) -> tuple[list[Record], str]:
        """All records, and the reason why the walk ended."""
        walker = RecordWalker(
            self.folder.start_lsn,
            wal_seg_size=self.folder.wal_seg_size,
            version_major=self.folder.major,
            skip_continuation=True,
        )
        records = []
        try:
            for at in range(0, len(self.folder.wal), CHUNK):
                walker.feed(self.folder.wal[at : at + CHUNK])
                while (record := walker.next()) is not NEED_DATA:
                    records.append(record)
        except WalFormatError as error:
            return records, str(error)
        return records, ""

    @property
    def records(self) -> list[Record]:
        return self.walk[0]

    @property
    def end_lsn(self) -> Lsn:
        return self.records[-1].end_lsn

    @cached_property
    def boundaries(self) -> list[int]:
        """All boundaries in order; the log's start counts as one, even inside a record."""
        start_lsn, first_lsn = self.folder.start_lsn, self.records[0].start_lsn
        page_lsn = first_lsn - first_lsn % WAL_PAGE_SIZE
        if first_lsn == page_lsn + page_header_size(page_lsn, self.folder.wal_seg_size):
            first_lsn = Lsn(page_lsn)
        rest = [first_lsn] if first_lsn > start_lsn else []
        return [start_lsn, *rest, *(record.end_lsn for record in self.records)]

    def last_boundary(self, lsn: int) -> int:
        """The greatest record boundary at or below `lsn`."""
        return self.boundaries[bisect_right(self.boundaries, lsn) - 1]

    def is_switch_padding(self, lsn: int) -> bool:
        """Whether `lsn` is inside a switch record."""
        following = self.records[bisect_right(self.boundaries, lsn) - len(self.boundaries)]
        return following.total_length == RECORD_HEADER_SIZE

    def assert_agrees(self) -> None:
        """Both views have the same records, and each record begins where the previous one ended."""
        major, wal_seg_size = self.folder.major, self.folder.wal_seg_size
        for record, dumped in zip_longest(self.records, self.dump.records):
            ours = record and (
                record.start_lsn,
                record.total_length,
                record.prev_lsn,
                record.xid,
                record.rmgr_name(major),
            )
            assert ours == dumped
        for before, record in pairwise(self.records):
            start_lsn = int(before.end_lsn)
            if start_lsn % WAL_PAGE_SIZE == 0:
                start_lsn += page_header_size(start_lsn, wal_seg_size)
            is_overwrite = (record.rmgr_id, record.info) == (RM_XLOG_ID, XLOG_OVERWRITE_CONTRECORD)
            assert record.start_lsn == start_lsn or is_overwrite, f"gap before {record.start_lsn}"
