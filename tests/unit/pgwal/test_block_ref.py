"""Record bodies: block references, images and main data, and every kind of contradiction."""

from __future__ import annotations

import struct

import pytest

from quorum_wal.pgwal.block_ref import BlockRef, PageImage, Relation, decode_body
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.record import Record

TABLE = struct.pack("<III", 1663, 5, 16384)
START = Lsn(0x200028)


def record_of(*parts: bytes) -> Record:
    data = bytes(24) + b"".join(parts)
    return Record(START, Lsn(START + 800), len(data), Lsn(0x200000), 7, 10, 0, data)


def block(
    block_id: int, flags: int, length: int, image: bytes = b"", relation: bytes = TABLE
) -> bytes:
    return bytes([block_id, flags]) + struct.pack("<H", length) + image + relation + b"\5\0\0\0"


def image(length: int, hole_offset: int, info: int, hole_length: int | None = None) -> bytes:
    head = struct.pack("<HHB", length, hole_offset, info)
    return head if hole_length is None else head + struct.pack("<H", hole_length)


def test_main_data_only() -> None:
    body = decode_body(record_of(b"\xff\x03abc"), 16)
    assert (body.blocks, body.main_data, body.origin, body.toplevel_xid) == ((), b"abc", 0, 0)


def test_long_main_data() -> None:
    main = b"m" * 300
    assert decode_body(record_of(b"\xfe" + struct.pack("<I", 300), main), 16).main_data == main


def test_bare_header() -> None:
    assert decode_body(record_of(), 16).main_data == b""


def test_blocks_images_and_data_in_order() -> None:
    body = decode_body(
        record_of(
            block(0, 0x20, 4),
            block(2, 0x91, 0, image(100, 24, 0x03), relation=b""),
            b"\xfd" + struct.pack("<H", 9),
            b"\xfc" + struct.pack("<I", 700),
            b"\xff\x02",
            b"data",
            b"i" * 100,
            b"mm",
        ),
        16,
    )
    relation = Relation(1663, 5, 16384)
    assert str(relation) == "1663/5/16384"
    assert body.blocks == (
        BlockRef(0, relation, 0, 5, None, b"data"),
        BlockRef(2, relation, 1, 5, PageImage(b"i" * 100, 24, 8092, None, True), b""),
    )
    assert (body.main_data, body.origin, body.toplevel_xid) == (b"mm", 9, 700)


@pytest.mark.parametrize(
    ("major", "info", "compression", "is_applied"),
    [
        (13, 0x07, "pglz", True),
        (14, 0x03, "pglz", False),
        (15, 0x07, "pglz", True),
        (16, 0x0B, "lz4", True),
        (18, 0x11, "zstd", False),
    ],
)
def test_compressed_image(major: int, info: int, compression: str, is_applied: bool) -> None:
    """The bits moved with 15."""
    header = block(0, 0x10, 0, image(50, 24, info, hole_length=4000))
    (found,) = decode_body(record_of(header, b"i" * 50), major).blocks
    assert found.image == PageImage(b"i" * 50, 24, 4000, compression, is_applied)


def test_compressed_image_without_a_hole() -> None:
    (found,) = decode_body(record_of(block(0, 0x10, 0, image(50, 0, 0x06)), b"i" * 50), 16).blocks
    assert found.image == PageImage(b"i" * 50, 0, 0, "pglz", True)


def test_whole_page_image() -> None:
    page = b"i" * 8192
    (found,) = decode_body(record_of(block(0, 0x10, 0, image(8192, 0, 0x02)), page), 16).blocks
    assert found.image == PageImage(page, 0, 0, None, True)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ((b"\xff\x03ab",), "record with invalid length"),
        ((b"\xff\x03abcd",), "record with invalid length"),
        ((b"\xff",), "record with invalid length"),
        ((block(0, 0, 0)[:10],), "record with invalid length"),
        ((b"\x21",), "invalid block_id 33"),
        ((b"\xfb",), "invalid block_id 251"),
        ((block(1, 0x20, 4), block(1, 0x20, 4), bytes(8)), "out-of-order block_id 1"),
        ((block(0, 0x20, 0),), "block 0 has data length 0 and flags 20"),
        ((block(0, 0x00, 4), bytes(4)), "block 0 has data length 4 and flags 00"),
        ((block(0, 0x80, 0, relation=b""),), "SAME_REL set but no previous rel"),
        ((block(0, 0x10, 0, image(100, 0, 0x03)), bytes(100)), "info bits 03, length 100"),
        ((block(0, 0x10, 0, image(8192, 24, 0x03)), bytes(8192)), "hole length 0"),
        ((block(0, 0x10, 0, image(100, 0, 0x02)), bytes(100)), "hole length 8092"),
        ((block(0, 0x10, 0, image(8192, 0, 0x06)), bytes(8192)), "info bits 06, length 8192"),
        ((block(0, 0x10, 0, image(8192, 24, 0x02)), bytes(8192)), "hole offset 24"),
        ((block(0, 0x10, 0, image(9000, 0, 0x02)), bytes(9000)), "length 9000"),
    ],
)
def test_contradictions(parts: tuple[bytes, ...], message: str) -> None:
    with pytest.raises(WalFormatError) as caught:
        decode_body(record_of(*parts), 16)
    assert message in str(caught.value)
    assert str(caught.value).endswith("at 0/200028")
    assert caught.value.lsn == START


def test_toplevel_xid_came_with_14() -> None:
    part = b"\xfc" + struct.pack("<I", 700)
    assert decode_body(record_of(part), 14).toplevel_xid == 700
    with pytest.raises(WalFormatError, match="invalid block_id 252"):
        decode_body(record_of(part), 13)
