"""`BoundaryFinder`: the last record boundary in WAL as a walsender sends it, without decoding it.

A walsender's message ends at the flush pointer or at a page boundary, and the flush pointer is
inside a record only at the end of a page. So:

    end inside a page    always a record boundary; nothing is read
    end of a page        maybe inside a record; the page headers near the end show it

          sure page        end    A page header shows where the first record behind it
    ------+-----------+---------+ starts. From the last page where that can be trusted, the
          |hdr|rest|R1|R2|  R3 .. record lengths are followed to the end: R3 continues behind
    ------+-----------+---------+ it, so the boundary is the start of R3.

Law: `record_end_lsn` is the greatest record boundary <= the end of the bytes fed, as RecordWalker
would find it. In two cases the last header is not enough:

- A record as long as a page or longer: some pages hold only its middle.
- XLOG_SWITCH, whose record ends with its segment. The padding is sent with it: pages of zeros, or,
  if the primary crashed before it had written them, stale pages of the recycled file, which have
  other addresses.

The WAL is the primary's own, flushed and unbroken: CRCs are not checked.
"""

from __future__ import annotations

import struct

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, XLP_CONTRECORD, page_header_size
from quorum_wal.pgwal.record import RECORD_HEADER_SIZE, aligned, check_record_length, record_end_lsn
from quorum_wal.pgwal.segment import check_wal_seg_size
from quorum_wal.pgwal.versions import wal_version

_LENGTH = struct.Struct("<I")

#: magic, info, tli, page address, remaining length of the continued record
_HEADER = struct.Struct("<HHIQI")

#: Bytes of a switch record that continue after a page end that cuts its header. A page with a rest
#: so short may hold only the padding of that switch.
_SWITCH_REST_MAX = 16


class BoundaryFinder:
    """Takes the chunks in order; the first begins on a record boundary, `start_lsn`.

    An end inside a page costs about a microsecond; another end the record lengths of a page or two,
    for any length of the chunk. Keeps no bytes.
    """

    def __init__(self, start_lsn: int, *, wal_seg_size: int, version_major: int) -> None:
        check_wal_seg_size(wal_seg_size)
        self._wal_seg_size = wal_seg_size
        self._page_magic = wal_version(version_major).page_magic
        #: Invariant: record_end_lsn <= end_lsn; equal whenever end_lsn is not on a page boundary.
        self.record_end_lsn = start_lsn
        self.end_lsn = start_lsn
        #: Inside the padding of a switch: the end of that padding.
        self._padding_end_lsn: int | None = None

    def feed(self, begin_lsn: int, data: bytes | bytearray | memoryview) -> int:
        """Takes the chunk that begins where the last one ended; returns `record_end_lsn`.

        Raises WalFormatError for a gap between chunks, or if the bytes cannot be WAL.
        """
        if begin_lsn != self.end_lsn:
            raise WalFormatError(
                begin_lsn,
                f"WAL begins at {format_lsn(begin_lsn)}, expected {format_lsn(self.end_lsn)}",
            )
        if len(data) % 8:
            raise WalFormatError(
                begin_lsn,
                f"WAL at {format_lsn(begin_lsn)} is {len(data)} bytes long, "
                "expected a multiple of 8",
            )
        self.end_lsn = begin_lsn + len(data)
        if self.end_lsn % WAL_PAGE_SIZE:
            self.record_end_lsn = self.end_lsn
            self._padding_end_lsn = None
        elif data:
            self._decide(begin_lsn, data)
        return self.record_end_lsn

    def advance_to(self, lsn: int) -> None:
        """The WAL ends at `lsn`, inside a page; the caller has determined that."""
        assert lsn >= self.end_lsn
        assert lsn % WAL_PAGE_SIZE
        self.end_lsn = self.record_end_lsn = lsn
        self._padding_end_lsn = None

    def _decide(self, begin_lsn: int, data: bytes | bytearray | memoryview) -> None:
        """For an end on a page boundary: decides whether it is inside a record."""
        floor_lsn = begin_lsn
        if self._padding_end_lsn is not None:
            if self.end_lsn < self._padding_end_lsn:
                return
            floor_lsn = self.record_end_lsn = self._padding_end_lsn
            self._padding_end_lsn = None
        boundary_lsn = self._find_sure_boundary(begin_lsn, data, floor_lsn)
        if boundary_lsn is not None:
            self._walk_lengths(begin_lsn, data, boundary_lsn)

    def _find_sure_boundary(
        self, begin_lsn: int, data: bytes | bytearray | memoryview, floor_lsn: int
    ) -> int | None:
        """The boundary that the last trustworthy page header shows, at or above `floor_lsn`.

        None if everything from there on is the middle of one record. Above the floor there may be
        padding. So headers that do not fit their place are skipped. A header that may belong to a
        switch record cut by the page end is trusted only if the page before shows that it does not.
        At the floor there is no padding: a switch would have been seen before.
        """
        unsure_lsn: int | None = None
        page_lsn = self.end_lsn - WAL_PAGE_SIZE
        while page_lsn >= floor_lsn:
            magic, info, _, address, rest = _HEADER.unpack_from(data, page_lsn - begin_lsn)
            if magic == self._page_magic and address == page_lsn:
                if not info & XLP_CONTRECORD:
                    return page_lsn
                rest_end_lsn = page_lsn + page_header_size(page_lsn, self._wal_seg_size)
                rest_end_lsn += aligned(rest)
                if rest_end_lsn > page_lsn + WAL_PAGE_SIZE:
                    # The middle of a record, which is no switch: the next page shows its end.
                    if unsure_lsn is not None:
                        return unsure_lsn
                elif rest > _SWITCH_REST_MAX or page_lsn == floor_lsn:
                    return rest_end_lsn
                else:
                    unsure_lsn = rest_end_lsn
            elif page_lsn == floor_lsn:
                raise WalFormatError(
                    page_lsn,
                    f"invalid page header at {format_lsn(page_lsn)}: magic number {magic:04X} "
                    f"(expected {self._page_magic:04X}), pageaddr {format_lsn(address)}",
                )
            page_lsn -= WAL_PAGE_SIZE
        return floor_lsn if floor_lsn % WAL_PAGE_SIZE else None

    def _walk_lengths(
        self, begin_lsn: int, data: bytes | bytearray | memoryview, boundary_lsn: int
    ) -> None:
        """Goes from record to record, from a boundary to the last one at or below `end_lsn`."""
        end_lsn, wal_seg_size = self.end_lsn, self._wal_seg_size
        while boundary_lsn < end_lsn:
            start_lsn = boundary_lsn
            page_offset = start_lsn % WAL_PAGE_SIZE
            if page_offset == 0:
                start_lsn += page_header_size(start_lsn, wal_seg_size)
            (length,) = _LENGTH.unpack_from(data, start_lsn - begin_lsn)
            if RECORD_HEADER_SIZE < length <= WAL_PAGE_SIZE - page_offset and page_offset:
                next_lsn = start_lsn + aligned(length)
            else:
                check_record_length(length, start_lsn)
                next_lsn = record_end_lsn(start_lsn, length, wal_seg_size)
                if next_lsn > end_lsn:
                    if length == RECORD_HEADER_SIZE:
                        self._padding_end_lsn = next_lsn
                    break
            boundary_lsn = next_lsn
        self.record_end_lsn = boundary_lsn
