"""The seal detects every change of an object, and zstd itself can read the content."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Iterator

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.objectstore.errors import ObjectDamaged, ObjectStoreError
from quorum_wal.objectstore.sealed import (
    CONTENT_BYTES_MAX,
    NAME,
    SEAL,
    SKIPPABLE_MAGIC,
    VERSION,
    Codec,
    Seal,
    SealedPieces,
    seal,
    unseal,
    unseal_pieces,
)

LEVELS = [None, 1, 3, 19]
CONTENT = b"".join(b"record %d, " % number for number in range(40))


@pytest.mark.parametrize("level", LEVELS)
@given(st.binary(max_size=5000))
def test_sealed_content_is_unsealed(level: int | None, content: bytes) -> None:
    sealed = seal(content, level)
    assert unseal(sealed, "k") == content
    assert unseal(memoryview(sealed), "k") == content
    assert unseal(seal(memoryview(content), level), "k") == content
    found = Seal.decode(sealed[-SEAL.size :], "k")
    assert found == Seal(found.codec, len(content), crc32c(content))


@pytest.mark.parametrize("level", LEVELS)
def test_every_flipped_bit_is_found(level: int | None) -> None:
    sealed = seal(CONTENT, level)
    for position in range(len(sealed)):
        for bit in range(8):
            damaged = bytearray(sealed)
            damaged[position] ^= 1 << bit
            try:
                found = unseal(damaged, "k")
            except ObjectDamaged:
                continue
            # A bit that zstd ignores: the content is proven to be the same.
            assert level is not None
            assert found == CONTENT


@pytest.mark.parametrize("level", LEVELS)
def test_every_cut_is_found(level: int | None) -> None:
    sealed = seal(CONTENT, level)
    for length in range(len(sealed)):
        with pytest.raises(ObjectDamaged, match=r'^object "k" is damaged: '):
            unseal(sealed[:length], "k")
        with pytest.raises(ObjectDamaged):
            unseal(sealed[len(sealed) - length :], "k")
    with pytest.raises(ObjectDamaged):
        unseal(sealed + b"\0", "k")
    with pytest.raises(ObjectDamaged):
        unseal(sealed + sealed, "k")


@given(st.binary(max_size=300))
def test_any_bytes(data: bytes) -> None:
    for tail in (b"", struct.pack("<II4s", SKIPPABLE_MAGIC, 24, NAME)):
        with pytest.raises(ObjectStoreError):
            unseal(data + tail, "k")


@pytest.mark.parametrize("content", [b"", CONTENT, bytes(100_000)], ids=["empty", "text", "zeros"])
def test_zstd_reads_the_object_as_it_is(content: bytes) -> None:
    """Like `zstd -d`: the seal is a frame that every decoder skips."""
    sealed = seal(content, 1)
    decompressor = zstandard.ZstdDecompressor()
    with decompressor.stream_reader(sealed, read_across_frames=True) as reader:
        assert reader.read() == content
    parameters = zstandard.get_frame_parameters(sealed)
    assert parameters.content_size == len(content)


def test_a_newer_format_is_not_damage() -> None:
    """And has a hint."""
    for version, codec in ((VERSION + 1, 0), (VERSION, 7)):
        head = struct.pack("<II4sHHQI", SKIPPABLE_MAGIC, 24, NAME, version, codec, 0, 0)
        with pytest.raises(ObjectDamaged, match=f"has format {version}, codec {codec}") as error:
            Seal.decode(head + struct.pack("<I", crc32c(head)), "k")
        assert "newer release" in error.value.hint


def bomb(claimed: int, actual: int) -> bytes:
    packed = zstandard.ZstdCompressor(level=1).compress(bytes(actual))
    return packed + Seal(Codec.ZSTD, claimed, crc32c(bytes(min(claimed, 1 << 20)))).encode()


@pytest.mark.parametrize("claimed", [0, 1000, 1 << 20])
def test_a_bomb_is_not_unpacked(claimed: int) -> None:
    """256 MB of zeros under a seal with a smaller length take little more memory than that."""
    data = bomb(claimed, 256 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ObjectDamaged):
            unseal(data, "k")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < claimed + (8 << 20)


def test_a_seal_that_claims_too_much() -> None:
    with pytest.raises(ObjectDamaged, match="it claims"):
        unseal(Seal(Codec.RAW, CONTENT_BYTES_MAX + 1, 0).encode(), "k")


def test_a_seal_that_claims_more_than_there_is() -> None:
    """No gigabyte is allocated for it."""
    data = bomb(CONTENT_BYTES_MAX, 1000)
    tracemalloc.start()
    try:
        with pytest.raises(ObjectDamaged):
            unseal(data, "k")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 8 << 20


def test_equal_seals_are_equal_content() -> None:
    packed, raw = (Seal.decode(seal(CONTENT, level), "k") for level in (1, None))
    assert packed.is_same_content(raw)
    other = bytearray(CONTENT)
    other[random.Random(1).randrange(len(other))] ^= 1
    assert not packed.is_same_content(Seal.decode(seal(other, 1), "k"))


# ---- in pieces


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    """In pieces of these lengths, repeatedly."""
    pieces, begin, turn = [], 0, 0
    while begin < len(data):
        length = cuts[turn % len(cuts)]
        pieces.append(data[begin : begin + length])
        begin, turn = begin + length, turn + 1
    return pieces


def unsealed(data: bytes, cuts: list[int]) -> bytes:
    """As a reader does: the seal first, then the object."""
    return b"".join(unseal_pieces(cut(data, cuts), Seal.decode(data, "k"), "k"))


CUTS = st.lists(st.integers(1, 700), min_size=1, max_size=5)


@pytest.mark.parametrize("level", LEVELS)
@given(st.binary(max_size=5000), CUTS)
def test_pieces_are_the_same_object(level: int | None, content: bytes, cuts: list[int]) -> None:
    """Each can read what the other wrote, whole or in pieces; each iteration returns all of it."""
    sealed = SealedPieces(lambda: cut(content, cuts), len(content), level)
    assert sealed.seal() == Seal.decode(seal(content, level), "k")
    once, again = (b"".join(sealed) for _ in range(2))
    assert once == again
    assert Seal.decode(once, "k") == sealed.seal()
    assert unseal(once, "k") == content
    assert unsealed(once, cuts) == unsealed(seal(content, level), cuts) == content


@pytest.mark.parametrize("level", LEVELS)
def test_every_flipped_bit_is_found_in_pieces(level: int | None) -> None:
    """Of the bytes before the seal, which was read before."""
    sealed = seal(CONTENT, level)
    found = Seal.decode(sealed, "k")
    for position in range(len(sealed) - SEAL.size):
        damaged = bytearray(sealed)
        damaged[position] ^= 1 << position % 8
        try:
            content = b"".join(unseal_pieces(cut(bytes(damaged), [100]), found, "k"))
        except ObjectDamaged:
            continue
        assert level is not None
        assert content == CONTENT


@pytest.mark.parametrize("level", LEVELS)
def test_every_cut_is_found_in_pieces(level: int | None) -> None:
    sealed = seal(CONTENT, level)
    found = Seal.decode(sealed, "k")
    for length in range(len(sealed) - SEAL.size):
        with pytest.raises(ObjectDamaged, match=r'^object "k" is damaged: '):
            list(unseal_pieces(cut(sealed[:length], [100]), found, "k"))


@pytest.mark.parametrize("claimed", [0, 1000, 1 << 20, CONTENT_BYTES_MAX])
def test_a_bomb_is_not_unpacked_in_pieces(claimed: int) -> None:
    """Zeros beyond the seal's length, or fewer of them."""
    actual = 256 << 20 if claimed < CONTENT_BYTES_MAX else 1000
    data = bomb(claimed, actual)
    found = Seal.decode(data, "k")
    given = []
    tracemalloc.start()
    try:
        with pytest.raises(ObjectDamaged):
            given.extend(len(piece) for piece in unseal_pieces(cut(data, [1 << 20]), found, "k"))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert sum(given) <= min(claimed, actual)
    assert peak_bytes < 8 << 20


def test_content_of_another_length_has_no_seal() -> None:
    """Our bug, which must not become an object."""
    for level in (None, 1):
        for length in (len(CONTENT) - 1, len(CONTENT) + 1):
            with pytest.raises((AssertionError, zstandard.ZstdError)):
                list(SealedPieces(lambda: [CONTENT], length, level))


def test_an_interrupted_object_is_invalid() -> None:
    def pieces() -> Iterator[bytes]:
        yield CONTENT[:100]
        raise OSError("broken")

    sealed = SealedPieces(pieces, len(CONTENT), None)
    with pytest.raises(OSError, match="broken"):
        list(sealed)
    with pytest.raises(OSError, match="broken"):
        sealed.seal()
