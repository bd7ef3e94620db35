"""A file in a folder of WAL: a segment written by a server, pg_receivewal or an archive_command.

    00000001000000000000000A                     whole
    00000001000000000000000A.partial             its beginning, which pg_receivewal pads with zeros
    00000001000000000000000A.gz  .zst  .lz4      compressed
    00000001000000000000000A.gz.partial          the beginning of a compressed file, not padded

Law: the content is returned as it was written, up to the first damage. A file that ends too early
is an error, unless its name says that it is a beginning.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import BinaryIO

import zstandard

from quorum_wal.pgwal.errors import SegmentNameError
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.segment import parse_segment_name
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.wal_input import LostWal

BLOCK_BYTES = 1 << 20
#: the first two pages
HEAD_BYTES = 2 * WAL_PAGE_SIZE
#: compressed bytes in one read
_COMPRESSED_BYTES = 1 << 16

_NAME = re.compile(
    r"(?P<segment>[0-9A-F]{24})(?P<before>\.partial)?"
    r"(?P<compression>\.gz|\.zst|\.lz4)?(?P<behind>\.partial)?"
)


class RemovedSegment(LostWal):
    """The file has just disappeared: it may have been renamed without a suffix."""


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """`compression` is the suffix of its name, or ""."""

    path: Path
    tli: int
    segno: int
    is_partial: bool
    compression: str

    def head(self, wal_seg_size: int) -> bytes:
        """HEAD_BYTES, more of a compressed file, or what there is. Raises what `blocks` raises,
        LostWal only if nothing can be read."""
        return next(self.blocks(wal_seg_size, block_bytes=HEAD_BYTES), b"")

    def blocks(
        self, wal_seg_size: int, offset: int = 0, block_bytes: int = BLOCK_BYTES
    ) -> Iterator[bytes]:
        """The content from `offset` on, which must be a multiple of BLOCK_BYTES. Every block but
        the last has `block_bytes`, or BLOCK_BYTES of a compressed file. Raises LostWal if the file
        is truncated or damaged, RemovedSegment, WalInputError."""
        length = offset
        try:
            with self.path.open("rb", buffering=0) as file:
                for block in self._content(file, offset, block_bytes):
                    length += len(block)
                    if length > wal_seg_size:
                        raise self._lost(wal_seg_size, wal_seg_size, "is longer than that")
                    yield block
        except FileNotFoundError as error:
            lsn = self.segno * wal_seg_size
            text = f"segment file {self.path} at {format_lsn(lsn)} has been removed"
            raise RemovedSegment(lsn, text) from error
        except OSError as error:
            raise WalInputError(f"could not read {self.path}: {error.strerror}") from error
        except (zlib.error, zstandard.ZstdError, EOFError, RuntimeError) as error:
            if not self.is_partial:
                raise self._lost(length, wal_seg_size, f"is damaged: {error}") from error
        if length < wal_seg_size and not self.is_partial:
            raise self._lost(length, wal_seg_size, "ends there")

    def _content(self, file: BinaryIO, offset: int, block_bytes: int) -> Iterator[bytes]:
        if not self.compression:
            file.seek(offset)
            return iter(lambda: file.read(block_bytes), b"")  # a file returns full blocks
        content = _even(_DECOMPRESSORS[self.compression](file))
        return islice(content, offset // BLOCK_BYTES, None)

    def _lost(self, length: int, wal_seg_size: int, what: str) -> LostWal:
        lsn = self.segno * wal_seg_size + length
        return LostWal(
            lsn,
            f"segment file {self.path} {what} at {format_lsn(lsn)}: expected {wal_seg_size} bytes, "
            f"but {length} can be read",
        )


def parse_segment_file(path: Path, wal_seg_size: int) -> SegmentFile | None:
    """Parses the name of a file; None if it is not a segment."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        return None
    try:
        name = parse_segment_name(match["segment"], wal_seg_size)
    except SegmentNameError:
        return None
    is_partial = bool(match["before"] or match["behind"])
    return SegmentFile(path, name.tli, name.segno, is_partial, match["compression"] or "")


def is_segment_file_name(name: str) -> bool:
    """For any segment size."""
    return _NAME.fullmatch(name) is not None


def _even(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes in blocks of one size, including those before an error."""
    gathered = bytearray()
    try:
        for piece in pieces:
            gathered += piece
            while len(gathered) >= BLOCK_BYTES:
                yield bytes(gathered[:BLOCK_BYTES])
                del gathered[:BLOCK_BYTES]
    except (zlib.error, zstandard.ZstdError, EOFError, RuntimeError):
        if gathered:
            yield bytes(gathered)
        raise
    if gathered:
        yield bytes(gathered)


# ---- decompression; all raise an error if their stream ends too early


def _gunzip(file: BinaryIO) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    while data := file.read(_COMPRESSED_BYTES):
        while data:
            if stream.eof:
                stream = zlib.decompressobj(wbits=31)  # gzip files may be concatenated
            yield stream.decompress(data, BLOCK_BYTES)
            data = stream.unconsumed_tail or stream.unused_data
    if not stream.eof:
        raise EOFError("the compressed data ends too early")


def _unzstd(file: BinaryIO) -> Iterator[bytes]:
    with zstandard.ZstdDecompressor().stream_reader(
        file, read_size=_COMPRESSED_BYTES, read_across_frames=True, closefd=False
    ) as stream:
        while data := stream.read(BLOCK_BYTES):
            yield data


def _unlz4(file: BinaryIO) -> Iterator[bytes]:
    try:
        lz4_frame = import_module("lz4.frame")
    except ImportError as error:
        raise WalInputError(
            f"{file.name} is compressed with lz4, but the Python package lz4 is not installed",
            hint="Run pip install lz4 on the driver and on every worker.",
        ) from error
    stream = lz4_frame.LZ4FrameDecompressor()
    while not stream.eof:
        data = file.read(_COMPRESSED_BYTES) if stream.needs_input else b""
        if stream.needs_input and not data:
            raise EOFError("the compressed data ends too early")
        yield stream.decompress(data, BLOCK_BYTES)


_DECOMPRESSORS = {".gz": _gunzip, ".zst": _unzstd, ".lz4": _unlz4}
