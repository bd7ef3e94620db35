"""A file of `page_folder.py`: the pages that the WAL from one position to another has changed.

    record 1 | record 2 | ... | index | index: at u64, length u64, crc32c u32 | "SKPG"

    record   MessagePack: (image or null, {line pointer: tuple}), as in `heap_pages.py`
    index    MessagePack: the state, the followed files u32, and for each record: name u64 (file,
             then block), at u64, length u32, crc32c u32; sorted by name

Laws. A file is complete or has another name. Nothing is used whose checksum is wrong: the file was
damaged, or a crash of the machine has removed a part of it. Numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import msgspec
import numpy as np
from crc32c import crc32c

from quorum_wal.pgwal.block_ref import PageImage
from quorum_wal.spark.changes.page_spill import PageName
from quorum_wal.walrecords.record_index import Array

_TRAILER = struct.Struct("<QQI4s")
_MAGIC = b"SKPG"

#: an image, and the tuples that are newer than it, by line pointer
StoredPage: TypeAlias = tuple[PageImage | None, dict[int, bytes]]


class PagesLost(Exception):
    """A file is missing, damaged, or not of this WAL. The reader then reads the WAL instead."""


class LastRecord(msgspec.Struct, frozen=True):
    """A record of the WAL; its CRC identifies its content."""

    lsn: int
    crc: int
    tli: int


class PageState(msgspec.Struct, frozen=True):
    """The file has the pages that the records in [begin_lsn, end_lsn) have changed, of which `last`
    is the last one. With the files before it, from `redo_lsn` on, it has all pages that change
    after `end_lsn` without an image."""

    system_id: int
    begin_lsn: int
    end_lsn: int
    redo_lsn: int
    last: LastRecord


class PageIndex(msgspec.Struct, frozen=True):
    """Arrays as bytes, see the module."""

    state: PageState
    files: bytes
    names: bytes
    ats: bytes
    lengths: bytes
    crcs: bytes


_ENCODER = msgspec.msgpack.Encoder()
_INDEX, _PAGE = msgspec.msgpack.Decoder(PageIndex), msgspec.msgpack.Decoder(StoredPage)


def encode_page(page: StoredPage) -> bytes:
    return _ENCODER.encode(page)


def decode_page(data: bytes) -> StoredPage:
    """Of bytes whose checksum is right."""
    page: StoredPage = _PAGE.decode(data)
    return page


def name_of(page: PageName) -> int:
    return page[0] << 32 | page[1]


def decode_index(data: bytes) -> PageIndex:
    """Raises PagesLost."""
    try:
        index = _INDEX.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PagesLost(f"the index of a file of pages is damaged: {error}") from error
    count = len(index.names) // 8
    sizes = tuple(map(len, (index.names, index.ats, index.lengths, index.crcs)))
    if sizes != (8 * count, 8 * count, 4 * count, 4 * count) or len(index.files) % 4:
        raise PagesLost(f"the index of a file of pages has arrays of {sizes} bytes")
    return index


def write_page_file(
    path: Path, state: PageState, files: Array, pages: Iterable[tuple[PageName, bytes]]
) -> None:
    """Raises OSError; then there is no file."""
    names, ats, lengths, crcs, end = [], [], [], [], 0
    temporary = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        with temporary.open("xb") as out:
            for page, record in pages:
                names.append(name_of(page))
                ats.append(end)
                lengths.append(len(record))
                crcs.append(crc32c(record))
                end += len(record)
                out.write(record)
            order = np.argsort(np.array(names, np.uint64))
            index = _ENCODER.encode(
                PageIndex(
                    state,
                    files.astype("<u4").tobytes(),
                    np.array(names, "<u8")[order].tobytes(),
                    np.array(ats, "<u8")[order].tobytes(),
                    np.array(lengths, "<u4")[order].tobytes(),
                    np.array(crcs, "<u4")[order].tobytes(),
                )
            )
            out.write(index)
            out.write(_TRAILER.pack(end, len(index), crc32c(index), _MAGIC))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class PageFile:
    """An open file. Methods raise PagesLost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = path.open("rb", buffering=0)
            self.bytes = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise PagesLost(f"could not open {path}: {error.strerror}") from error
        try:
            self._load()
        except BaseException:
            self.close()
            raise

    def _load(self) -> None:
        trailer = self._read(max(0, self.bytes - _TRAILER.size), _TRAILER.size)
        at, length, crc, magic = _TRAILER.unpack(trailer)
        if magic != _MAGIC or at + length + _TRAILER.size != self.bytes:
            raise PagesLost(f"{self.path} does not end like a file of pages")
        data = self._read(at, length)
        if crc32c(data) != crc:
            raise PagesLost(f"{self.path} has an index with a wrong checksum")
        index = decode_index(data)
        self.state = index.state
        self.files = np.frombuffer(index.files, "<u4")
        self.names = np.frombuffer(index.names, "<u8")
        self.ats = np.frombuffer(index.ats, "<u8")
        self.lengths = np.frombuffer(index.lengths, "<u4")
        self.crcs = np.frombuffer(index.crcs, "<u4")

    def record(self, number: int) -> bytes:
        """The record of `names[number]`."""
        data = self._read(int(self.ats[number]), int(self.lengths[number]))
        if crc32c(data) != self.crcs[number]:
            raise PagesLost(f"{self.path} has a page with a wrong checksum")
        return data

    def close(self) -> None:
        self._file.close()

    def _read(self, at: int, length: int) -> bytes:
        try:
            data = os.pread(self._file.fileno(), length, at)
        except (OSError, OverflowError) as error:
            raise PagesLost(f"could not read {self.path}: {error}") from error
        if len(data) != length:
            raise PagesLost(f"{self.path} has {len(data)} bytes at {at}, expected {length}")
        return data
