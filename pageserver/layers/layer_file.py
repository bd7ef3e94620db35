"""A part of a layer: pages as of a cut, sorted, with an index at the end.

    | frame | frame | ... | footer | trailer |

    frame     zstd of up to 32 pages, 8192 bytes each
    footer    zstd of msgpack: `Footer`
    trailer   "QWPL" | version u16, 2 empty | footer at u64 | its length u32 | its crc32c u32 |
              crc32c of the trailer before it u32

All numbers are little-endian. A reader fetches the trailer, the footer, and the frames that it
needs. Each has its own checksum. Laws: pages are ordered by fork and block, and no page occurs
twice. A page that is not in the layer did not change in the epoch, or was removed
(`Footer.limits`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

import msgspec
import numpy as np
import zstandard
from crc32c import crc32c

from quorum_wal.objectstore.sealed import ZSTD_LEVEL
from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork, ForkKind
from quorum_wal.pageserver.layers.page_run import PageRun, Run
from quorum_wal.pageserver.layers.touches import Database, Numbers

MAGIC = b"QWPL"
VERSION = 1
FRAME_PAGES = 32
PART_BYTES = 64 << 20
_TRAILER = struct.Struct("<4sH2xQIII")
TRAILER_BYTES = _TRAILER.size
#: Larger than any valid footer. A greater size is rejected.
FOOTER_BYTES_MAX = 64 << 20


class Footer(msgspec.Struct, frozen=True, kw_only=True):
    """Arrays are packed u32. `forks` are (tablespace, database, number, kind, pages). `blocks` has
    the blocks of all forks in that order. `frames` has offset, length, crc32c of each frame. Only
    the first part of a layer has limits."""

    system_id: int
    redo_lsn: int
    end_lsn: int
    part: int
    forks: list[tuple[int, int, int, int, int]]
    blocks: bytes
    frames: bytes
    limits: list[tuple[int, int, int, int, int]]
    fresh_databases: list[tuple[int, int]]


#: Prepared by the import: msgspec crashes if several threads use a type first.
_DECODER = msgspec.msgpack.Decoder(Footer)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The WAL range of a layer: its pages are as of `end_lsn`, changed after `redo_lsn`."""

    system_id: int
    redo_lsn: int
    end_lsn: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Pages from before the epoch that were removed: of each fork the pages from a block on, of
    each database all pages."""

    blocks: dict[Fork, int]
    databases: frozenset[Database]

    def of(self, fork: Fork) -> int | None:
        """Returns None if no page of the fork was removed."""
        if Database(fork.tablespace, fork.database) in self.databases:
            return 0
        return self.blocks.get(fork)


def write_layer(
    epoch: Epoch,
    limits: Limits,
    pages: Iterable[PageRun],
    open_part: Callable[[int], IO[bytes]],
    *,
    part_bytes: int = PART_BYTES,
    level: int = ZSTD_LEVEL,
) -> int:
    """Writes the parts to files of `open_part` and closes them. Returns their number, at least 1.
    `pages` must be in order."""
    source = _frames(pages)
    part, pending = 0, next(source, None)
    while pending is not None or part == 0:
        with open_part(part) as file:
            writer = _PartWriter(file, zstandard.ZstdCompressor(level=level))
            while pending is not None and writer.length < part_bytes:
                writer.add(pending)
                pending = next(source, None)
            writer.finish(epoch, part, limits if part == 0 else Limits({}, frozenset()))
        part += 1
    return part


def _frames(runs: Iterable[PageRun]) -> Iterator[list[PageRun]]:
    """Groups runs into frames of FRAME_PAGES pages. The last frame may have fewer."""
    frame: list[PageRun] = []
    room = FRAME_PAGES
    for run in runs:
        at = 0
        while at < len(run.blocks):
            taken = run.part(at, at + room)
            frame.append(taken)
            at, room = at + len(taken.blocks), room - len(taken.blocks)
            if room == 0:
                yield frame
                frame, room = [], FRAME_PAGES
    if frame:
        yield frame


class _PartWriter:
    def __init__(self, file: IO[bytes], compressor: zstandard.ZstdCompressor) -> None:
        self.length = 0
        self._file = file
        self._compressor = compressor
        self._frames: list[tuple[int, int, int]] = []
        self._forks: list[tuple[Fork, int]] = []
        self._blocks: list[Numbers] = []

    def add(self, frame: Sequence[PageRun]) -> None:
        """The frame is full, unless it is the last one."""
        for run in frame:
            last = self._forks[-1] if self._forks else None
            if last is not None and last[0] == run.fork:
                assert run.blocks[0] > self._blocks[-1][-1], "pages come in order"
                self._forks[-1] = run.fork, last[1] + len(run.blocks)
            else:
                assert last is None or run.fork > last[0], "forks come in order"
                self._forks.append((run.fork, len(run.blocks)))
            self._blocks.append(run.blocks)
        content = frame[0].data if len(frame) == 1 else b"".join(run.data for run in frame)
        packed = self._compressor.compress(content)
        self._frames.append((self.length, len(packed), crc32c(packed)))
        self._file.write(packed)
        self.length += len(packed)

    def finish(self, epoch: Epoch, part: int, limits: Limits) -> None:
        blocks = np.concatenate(self._blocks) if self._blocks else np.empty(0)
        footer = Footer(
            system_id=epoch.system_id,
            redo_lsn=epoch.redo_lsn,
            end_lsn=epoch.end_lsn,
            part=part,
            forks=[(*_numbers(fork), count) for fork, count in self._forks],
            blocks=blocks.astype("<u4").tobytes(),
            frames=np.array(self._frames, "<u4").tobytes(),
            limits=[(*_numbers(fork), blocks) for fork, blocks in sorted(limits.blocks.items())],
            fresh_databases=[(each.tablespace, each.database) for each in sorted(limits.databases)],
        )
        packed = self._compressor.compress(msgspec.msgpack.encode(footer))
        head = struct.pack("<4sH2xQII", MAGIC, VERSION, self.length, len(packed), crc32c(packed))
        self._file.write(packed + head + struct.pack("<I", crc32c(head)))


def _numbers(fork: Fork) -> tuple[int, int, int, int]:
    return fork.tablespace, fork.database, fork.number, int(fork.kind)


#: (offset, length) -> bytes of the part
ReadRange = Callable[[int, int], bytes]
#: (number of a frame, unpack) -> uncompressed content
KeptFrames = Callable[[int, Callable[[], bytes]], bytes]


def _gathered(frame: bytes, positions: Numbers) -> memoryview:
    """The pages at these positions of a frame."""
    first, last = int(positions[0]), int(positions[-1])
    if last - first + 1 == len(positions):
        return memoryview(frame)[first * PAGE_BYTES : (last + 1) * PAGE_BYTES]
    pages = np.frombuffer(frame, np.uint8).reshape(-1, PAGE_BYTES)
    return pages[positions].reshape(-1).data


class LayerPart:
    """Reads a part. `key` names it in errors. `kept` returns the content of a frame by its number,
    from a cache or by calling the given function. Every method raises LayerDamaged and the
    exceptions of `read_range`."""

    def __init__(
        self, key: str, size_bytes: int, read_range: ReadRange, kept: KeptFrames | None = None
    ) -> None:
        self._key = key
        self._kept = kept
        self._read_range = read_range
        self._size_bytes = size_bytes
        footer = self._read_footer()
        self.epoch = Epoch(footer.system_id, footer.redo_lsn, footer.end_lsn)
        self.part = footer.part
        self.limits = self._limits(footer)
        self._blocks = np.frombuffer(footer.blocks, "<u4")
        self._frames = np.frombuffer(footer.frames, "<u4").reshape(-1, 3)
        self._places: dict[Fork, tuple[int, int]] = {}
        at = 0
        for *numbers, count in footer.forks:
            self._places[self._fork(numbers)] = at, at + count
            at += count
        if at != len(self._blocks) or -(-at // FRAME_PAGES) != len(self._frames):
            raise self._damaged(f"the footer has {at} pages in {len(self._frames)} frames")

    @property
    def page_count(self) -> int:
        return len(self._blocks)

    @property
    def forks(self) -> Sequence[Fork]:
        return list(self._places)

    def blocks(self, fork: Fork) -> Numbers:
        """The blocks of this fork that the part contains, sorted."""
        begin, end = self._places.get(fork, (0, 0))
        return self._blocks[begin:end]

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        """Yields those of the sorted `blocks` that the part contains, in order. Each frame is
        decompressed once."""
        begin, end = self._places.get(fork, (0, 0))
        own = self._blocks[begin:end]
        if not len(own):
            return
        found = np.searchsorted(own, blocks)
        found = found[own[np.minimum(found, len(own) - 1)] == blocks] + begin
        numbers = found // FRAME_PAGES
        for number in np.unique(numbers).tolist():
            positions = found[numbers == number]
            frame, first = self._content(number), number * FRAME_PAGES
            yield self._blocks[positions], _gathered(frame, positions - first)

    def pages(self) -> Iterator[PageRun]:
        """All pages, in order."""
        for fork in self._places:
            for blocks, data in self.read(fork, self.blocks(fork)):
                yield PageRun(fork, blocks, data)

    def _content(self, number: int) -> bytes:
        if self._kept is None:
            return self._unpack(number)
        return self._kept(number, lambda: self._unpack(number))

    def _unpack(self, number: int) -> bytes:
        offset, length, crc = self._frames[number].tolist()
        packed = self._read_range(offset, length)
        if len(packed) != length or crc32c(packed) != crc:
            raise self._damaged(f"frame {number} has a wrong checksum, expected {crc:08X}")
        pages = min(FRAME_PAGES, len(self._blocks) - number * FRAME_PAGES)
        return self._decompress(packed, pages * PAGE_BYTES)

    def _read_footer(self) -> Footer:
        if self._size_bytes < TRAILER_BYTES:
            raise self._damaged(
                f"expected at least {TRAILER_BYTES} bytes, found {self._size_bytes}"
            )
        trailer = self._read_range(self._size_bytes - TRAILER_BYTES, TRAILER_BYTES)
        magic, version, at, length, footer_crc, crc = _TRAILER.unpack(trailer)
        if magic != MAGIC or crc != crc32c(trailer[:-4]):
            raise self._damaged("the trailer is missing or has a wrong checksum")
        if version != VERSION:
            raise LayerDamaged(
                f'layer "{self._key}" has format {version}, expected {VERSION}',
                hint="A newer version of sk has written it. Upgrade sk.",
            )
        if at + length + TRAILER_BYTES != self._size_bytes:
            raise self._damaged(f"the footer at {at} with {length} bytes does not match the size")
        packed = self._read_range(at, length)
        if crc32c(packed) != footer_crc:
            raise self._damaged("the footer has a wrong checksum")
        try:
            content = zstandard.ZstdDecompressor().decompress(packed, FOOTER_BYTES_MAX)
            return _DECODER.decode(content)
        except (zstandard.ZstdError, msgspec.MsgspecError) as error:
            raise self._damaged(f"could not decode the footer: {error}") from error

    def _limits(self, footer: Footer) -> Limits:
        return Limits(
            {self._fork(numbers): blocks for *numbers, blocks in footer.limits},
            frozenset(Database(*each) for each in footer.fresh_databases),
        )

    def _fork(self, numbers: Sequence[int]) -> Fork:
        tablespace, database, number, kind = numbers
        try:
            return Fork(tablespace, database, number, ForkKind(kind))
        except ValueError as error:
            raise self._damaged(f"{kind} is not a valid fork number") from error

    def _decompress(self, packed: bytes, length: int) -> bytes:
        try:
            content = zstandard.ZstdDecompressor().decompress(packed, length)
        except zstandard.ZstdError as error:
            raise self._damaged(f"could not decompress it: {error}") from error
        if len(content) != length:
            raise self._damaged(f"expected {length} bytes in a frame, found {len(content)}")
        return content

    def _damaged(self, why: str) -> LayerDamaged:
        return LayerDamaged(f'layer "{self._key}" is damaged: {why}')
