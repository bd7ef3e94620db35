"""What the bytes of every object look like. Pure.

    content, or its zstd frame | seal

    seal, 32 bytes:
    magic u32 | size u32 = 24 | "QWAL" | version u16 | codec u16 | content length u64 |
    content crc32c u32 | crc32c u32 of the seal before it

All numbers are little-endian. The seal is a skippable frame of zstd (RFC 8878, section 3.1.2), so
`zstd -d` unpacks an object as it is; and it is at the end, so that an object may be written before
its length is known, and is never valid when it was cut short. The checksum is the content's: it
proves what is restored, whatever the compressor did.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

import zstandard
from crc32c import crc32c

from objectstore.errors import ObjectDamaged

SEAL = struct.Struct("<II4sHHQII")
SKIPPABLE_MAGIC = 0x184D2A57
NAME = b"QWAL"
VERSION = 1
#: More than any object holds; a seal that says more lies, whatever its checksum says.
CONTENT_BYTES_MAX = 1 << 30
ZSTD_LEVEL = 1
#: Of content to its frame: less than what WAL comes to, but for that of an idle server.
MODEST_RATIO = 64
CHUNK_BYTES = 256 << 10


class Codec(IntEnum):
    """How the content is packed."""

    RAW = 0
    ZSTD = 1


@dataclass(frozen=True, slots=True)
class Seal:
    """Of one object. Two objects with equal seals have equal content."""

    codec: Codec
    content_length: int
    content_crc: int

    def is_same_content(self, other: Seal) -> bool:
        """However each is packed."""
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
            raise _damaged(key, "it does not end with a seal: cut short, or written by another")
        if version != VERSION or codec not in list(Codec):
            raise ObjectDamaged(
                f'object "{key}" has format {version}, codec {codec}; '
                f"this release knows format {VERSION}",
                hint="A newer release wrote it; use that one.",
            )
        if length > CONTENT_BYTES_MAX:
            raise _damaged(key, f"it claims {length} bytes of content")
        return Seal(Codec(codec), length, content_crc)


def seal(content: bytes | memoryview, level: int | None = ZSTD_LEVEL) -> bytes:
    """An object with this content, compressed by zstd at `level`; None: not at all."""
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


def _decompress(packed: memoryview, length: int, key: str) -> bytes:
    """At most `length` bytes and one more, whatever the frame says of itself; and whatever the seal
    says, no memory but for bytes that are there."""
    chunks: list[bytes] = []
    missing = length + 1
    try:
        if _is_modest(packed, length):
            return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
        with zstandard.ZstdDecompressor().stream_reader(packed) as reader:
            while missing and (chunk := reader.read(min(missing, CHUNK_BYTES))):
                chunks.append(chunk)
                missing -= len(chunk)
        return b"".join(chunks)
    except zstandard.ZstdError as error:
        raise _damaged(key, f"zstd: {error}") from error


def _is_modest(packed: memoryview, length: int) -> bool:
    """Whether frame and seal agree on a length that may be set aside at once, which is seven times
    as fast. Raises ZstdError."""
    claimed = zstandard.get_frame_parameters(packed).content_size
    return claimed == length <= MODEST_RATIO * len(packed)


def _damaged(key: str, why: str) -> ObjectDamaged:
    return ObjectDamaged(f'object "{key}" is damaged: {why}')
