"""The bytes of every object. Pure.

    content, or its zstd frame | seal

    seal, 32 bytes:
    magic u32 | size u32 = 24 | "QWAL" | version u16 | codec u16 | content length u64 |
    content crc32c u32 | crc32c u32 of the seal before it


All numbers are little-endian. The seal is a skippable frame of zstd (RFC 8878, section 3.1.2), so
`zstd -d` unpacks an object as it is. The seal is at the end, so that an object can be written
before its length is known, and a truncated object is never valid. The checksum is that of the
content: it proves the restored bytes, independent of the compressor.

Small objects are packed and unpacked as a whole (`seal`, `unseal`), large ones in pieces
(`SealedPieces`, `unseal_pieces`), with only a few of them in memory. The format is the same.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import IO, cast

import zstandard
from crc32c import crc32c

from quorum_wal.objectstore.errors import ObjectDamaged

SEAL = struct.Struct("<II4sHHQII")
SKIPPABLE_MAGIC = 0x184D2A57
NAME = b"QWAL"
VERSION = 1
#: More than any object contains; a seal with more is refused, even if its checksum is right.
CONTENT_BYTES_MAX = 1 << 30
ZSTD_LEVEL = 1
#: Of content to its frame: greater than that of WAL, except an idle server's.
LENGTH_RATIO_MAX = 64
CHUNK_BYTES = 256 << 10


class Codec(IntEnum):
    """The compression of the content."""

    RAW = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Seal:
    """Of one object. Two objects with equal seals have equal content."""

    codec: Codec
    content_length: int
    content_crc: int

    def is_same_content(self, other: Seal) -> bool:
        """Compares the contents only, not the codecs."""
        mine = self.content_length, self.content_crc
        return mine == (other.content_length, other.content_crc)

    def encode(self) -> bytes:
        head = struct.pack(
            "<II4sHHQI", SKIPPABLE_MAGIC, SEAL.size - 8, NAME, VERSION,
            self.codec, self.content_length, self.content_crc,
        )  # fmt: skip
        return head + struct.pack("<I", crc32c(head))

    @staticmethod
    def decode(data: bytes | memoryview, key: str) -> Seal:
        """From the last bytes of an object. Raises ObjectDamaged."""
        if len(data) < SEAL.size:
            raise _damaged(key, f"expected at least {SEAL.size} bytes, found {len(data)}")
        seal = bytes(data[-SEAL.size :])
        magic, size, name, version, codec, length, content_crc, crc = SEAL.unpack(seal)
        if (magic, size, name) != (SKIPPABLE_MAGIC, SEAL.size - 8, NAME) or crc != crc32c(
            seal[:-4]
        ):
            raise _damaged(key, "it does not end with a seal: truncated, or written by another")
        if version != VERSION or codec not in list(Codec):
            raise ObjectDamaged(
                f'object "{key}" has format {version}, codec {codec}; '
                f"this release supports format {VERSION}",
                hint="A newer release wrote it; use that release.",
            )
        if length > CONTENT_BYTES_MAX:
            raise _damaged(key, f"it claims {length} bytes of content")
        return Seal(Codec(codec), length, content_crc)


def seal(content: bytes | memoryview, level: int | None = ZSTD_LEVEL) -> bytes:
    """An object with this content, compressed by zstd at `level`; None: not compressed."""
    if level is None:
        packed: bytes | memoryview = content
    else:
        packed = zstandard.ZstdCompressor(level=level).compress(content)
    codec = Codec.RAW if level is None else Codec.ZSTD
    return b"".join((packed, Seal(codec, len(content), crc32c(content)).encode()))


def unseal(data: bytes | memoryview, key: str) -> bytes:
    """The content, verified. `key` names the object in errors. Raises ObjectDamaged."""
    found = Seal.decode(data, key)
    packed = memoryview(data)[: -SEAL.size]
    if found.codec is Codec.RAW:
        content = bytes(packed)
    else:
        content = _decompress(packed, found.content_length, key)
    if len(content) != found.content_length or crc32c(content) != found.content_crc:
        raise _damaged(
            key,
            f"expected {found.content_length} bytes with checksum {found.content_crc:08X}, "
            f"found {len(content)} with {crc32c(content):08X}",
        )
    return content


class SealedPieces:
    """An object in pieces, for content that is not in memory as a whole. Each iteration reads and
    packs the content again, so that an object can be written again after a failure."""

    def __init__(
        self,
        read: Callable[[], Iterable[bytes | memoryview]],
        length: int,
        level: int | None = ZSTD_LEVEL,
    ) -> None:
        """`read` returns the content in pieces, `length` bytes in all."""
        self._read = read
        self._length = length
        self._level = level
        self._content_crc: int | None = None

    def __iter__(self) -> Iterator[bytes | memoryview]:
        if self._level is None:
            yield from self._content()
        else:
            compressor = zstandard.ZstdCompressor(level=self._level)
            chunker = compressor.chunker(size=self._length, chunk_size=CHUNK_BYTES)
            for piece in self._content():
                yield from chunker.compress(piece)
            yield from chunker.finish()  # type: ignore[no-untyped-call]
        yield self.seal().encode()

    def seal(self) -> Seal:
        """The seal at the end. Reads the content, unless it was packed before."""
        if self._content_crc is None:
            for _ in self._content():
                continue
        assert self._content_crc is not None
        codec = Codec.RAW if self._level is None else Codec.ZSTD
        return Seal(codec, self._length, self._content_crc)

    def _content(self) -> Iterator[bytes | memoryview]:
        """At its end the checksum is known."""
        length = crc = 0
        for piece in self._read():
            length, crc = length + len(piece), crc32c(piece, crc)
            yield piece
        assert length == self._length, "content does not have the given length"
        self._content_crc = crc


def unseal_pieces(pieces: Iterable[bytes], found: Seal, key: str) -> Iterator[bytes]:
    """The content of the object in `pieces`, which ends with the seal `found`. The content is
    verified only when the iteration has ended. Raises ObjectDamaged."""
    packed = _without_seal(pieces)
    length = crc = 0
    for piece in packed if found.codec is Codec.RAW else _decompress_pieces(packed, key):
        length, crc = length + len(piece), crc32c(piece, crc)
        if length > found.content_length:
            break  # the frame is longer than the seal allows
        yield piece
    if (length, crc) != (found.content_length, found.content_crc):
        raise _damaged(
            key,
            f"expected {found.content_length} bytes with checksum {found.content_crc:08X}, "
            f"found {'at least ' * (length > found.content_length)}{length} with {crc:08X}",
        )


def _without_seal(pieces: Iterable[bytes]) -> Iterator[bytes]:
    held = b""
    for piece in pieces:
        held += piece
        if len(held) > SEAL.size:
            yield held[: -SEAL.size]
            held = held[-SEAL.size :]


class _Source:
    """Input of zstd: it takes pieces of any length."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces

    def read(self, _size: int = -1) -> bytes:
        return next(self._pieces, b"")


def _decompress_pieces(packed: Iterator[bytes], key: str) -> Iterator[bytes]:
    try:
        source = cast(IO[bytes], _Source(packed))
        with zstandard.ZstdDecompressor().stream_reader(source) as reader:
            while chunk := reader.read(CHUNK_BYTES):
                yield chunk
    except zstandard.ZstdError as error:
        raise _damaged(key, f"zstd: {error}") from error


def _decompress(packed: memoryview, length: int, key: str) -> bytes:
    """At most `length` + 1 bytes, whatever length the frame claims. Allocates memory only for bytes
    that exist, whatever length the seal claims."""
    chunks: list[bytes] = []
    missing = length + 1
    try:
        if _is_length_safe(packed, length):
            return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            while missing and (chunk := reader.read(min(missing, CHUNK_BYTES))):
                chunks.append(chunk)
                missing -= len(chunk)
        return b"".join(chunks)
    except zstandard.ZstdError as error:
        raise _damaged(key, f"zstd: {error}") from error


def _is_length_safe(packed: memoryview, length: int) -> bool:
    """Whether frame and seal agree on a length that may be allocated at once, which is seven times
    as fast. Raises ZstdError."""
    claimed = zstandard.get_frame_parameters(packed).content_size
    return claimed == length <= LENGTH_RATIO_MAX * len(packed)


def _damaged(key: str, why: str) -> ObjectDamaged:
    return ObjectDamaged(f'object "{key}" is damaged: {why}')
