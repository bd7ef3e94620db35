"""Changes WAL so that replay stays in its directory: CREATE TABLESPACE without a location.

    header | oid u32 | location, a zero byte        ->        header | oid u32 | zero bytes

Replayed unchanged, the record would create folders at the location, which may be those of a primary
on the same host. Without a location Postgres creates an in-place tablespace, a folder in pg_tblspc
(since 13.8, 14.5 and 15). The record keeps its length, so no position changes. Its CRC is computed
again, in a copy of its segments.
Source: Postgres `create_tablespace_directories` in `commands/tablespace.c`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from quorum_wal.pageserver.epochs.wal_folder import WalFolder
from quorum_wal.pageserver.layers.touches import NewTablespace
from quorum_wal.pgwal.page import WAL_PAGE_SIZE, page_header_size
from quorum_wal.pgwal.record import CRC_OFFSET, record_crc

WAL_FOLDER = "pg_wal"
_U32 = struct.Struct("<I")


def link_range(
    wal: WalFolder,
    begin_lsn: int,
    end_lsn: int,
    tli: int,
    created: Sequence[NewTablespace],
    data_dir: Path,
    give: Callable[[Path], None],
) -> None:
    """Links the WAL for the replay of [begin_lsn, end_lsn) into a data directory's pg_wal. The
    server only reads through the links; the original files do not change. Raises SurveyError."""
    seg_size = wal.server.wal_seg_size
    folder = data_dir / WAL_FOLDER
    segments = wal.segments(begin_lsn, end_lsn, tli)
    link_wal(segments, begin_lsn - begin_lsn % seg_size, seg_size, created, folder, give)
    link_histories(wal, data_dir)


def link_histories(wal: WalFolder, data_dir: Path) -> None:
    """Links the timeline history files into a data directory's pg_wal."""
    for path in wal.histories():
        (data_dir / WAL_FOLDER / path.name).symlink_to(path.resolve())


def link_wal(
    segments: Sequence[Path],
    first_lsn: int,
    wal_seg_size: int,
    created: Sequence[NewTablespace],
    folder: Path,
    give: Callable[[Path], None],
) -> None:
    """Links these segments, the first of which begins at `first_lsn`, into a server's pg_wal.
    Segments that are changed or incomplete are copied instead."""
    copied: dict[int, bytearray] = {}

    def content(segno: int) -> bytearray:
        if segno not in copied:
            copied[segno] = bytearray(segments[segno - first_lsn // wal_seg_size].read_bytes())
        return copied[segno]

    for tablespace in created:
        _RecordBytes(tablespace.lsn, wal_seg_size, content).remove_location(tablespace)
    for number, path in enumerate(segments):
        link = folder / path.name
        segno = first_lsn // wal_seg_size + number
        if path.stat().st_size < wal_seg_size:  # Postgres reads whole pages, even the last one
            content(segno).extend(bytes(wal_seg_size - len(content(segno))))
        changed = copied.get(segno)
        if changed is None:
            link.symlink_to(path.resolve())
        else:
            link.write_bytes(changed)
            give(link)


class _RecordBytes:
    """The bytes of a complete, validated record, which may span pages and segments."""

    def __init__(
        self, start_lsn: int, wal_seg_size: int, content: Callable[[int], bytearray]
    ) -> None:
        self._wal_seg_size = wal_seg_size
        self._content = content
        self._places: list[int] = []
        self._gather(start_lsn, _U32.size)
        (length,) = _U32.unpack(self._bytes(0, _U32.size))
        self._gather(start_lsn, length)

    def remove_location(self, tablespace: NewTablespace) -> None:
        """The location is the end of the main data, and so the end of the record."""
        location = tablespace.location.encode(errors="surrogateescape") + b"\0"
        length = len(self._places)
        begin = length - tablespace.main_bytes + _U32.size
        assert self._bytes(begin, begin + len(location)) == location
        self._write(begin, bytes(length - begin))
        self._write(CRC_OFFSET, _U32.pack(record_crc(self._bytes(0, length))))

    def _gather(self, start_lsn: int, length: int) -> None:
        """Collects the WAL positions of its first `length` bytes."""
        self._places.clear()
        lsn = start_lsn
        while len(self._places) < length:
            if lsn % WAL_PAGE_SIZE == 0:
                lsn += page_header_size(lsn, self._wal_seg_size)
            self._places.append(lsn)
            lsn += 1

    def _bytes(self, begin: int, end: int) -> bytes:
        return bytes(
            self._content(lsn // self._wal_seg_size)[lsn % self._wal_seg_size]
            for lsn in self._places[begin:end]
        )

    def _write(self, begin: int, data: bytes) -> None:
        for lsn, byte in zip(self._places[begin : begin + len(data)], data, strict=True):
            self._content(lsn // self._wal_seg_size)[lsn % self._wal_seg_size] = byte
