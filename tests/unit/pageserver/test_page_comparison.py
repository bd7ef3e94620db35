"""Which differences between a server's page and its WAL are damage, and which are not."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest

from quorum_wal.pageserver.checks.page_comparison import Expectation, Verdict, compare
from quorum_wal.pageserver.checks.page_mask import PageKind, is_blank, masked, page_kind
from quorum_wal.pageserver.checks.page_sample import choose_pages
from quorum_wal.pageserver.checks.visibility_bits import (
    ALL_FROZEN,
    ALL_VISIBLE,
    are_bits_valid,
    extra_bits,
)
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork, ForkKind
from quorum_wal.pageserver.layers.page_header import page_checksum, page_checksums
from quorum_wal.pageserver.layers.page_stack import ZERO_PAGE

LSN = 0x1000
TUPLE_AT = PAGE_BYTES - 40
TUPLE = struct.pack("<IIIHHHHHB", 700, 0, 0, 0, 0, 1, 2, 0x0800, 24) + bytes(1) + b"twelve bytes"


def page(lower: int = 28, special: bytes = b"", tuple_bytes: bytes = TUPLE) -> bytes:
    """A page with one tuple of 36 bytes, 40 with padding, before its special area."""
    end = PAGE_BYTES - len(special)
    at = end - 40
    header = struct.pack("<IIHHHHHHI", 0, LSN, 0, 0, lower, at, end, 0x2004, 0)
    pointer = struct.pack("<I", at | 1 << 15 | len(tuple_bytes) << 17)
    found = bytearray(PAGE_BYTES)
    found[: len(header)] = header
    found[24:28] = pointer
    found[at : at + len(tuple_bytes)] = tuple_bytes
    found[end:] = special
    return bytes(found)


def changed(content: bytes, at: int, data: bytes) -> bytes:
    return content[:at] + data + content[at + len(data) :]


def verdict(ours: bytes, theirs: bytes | None, **facts: bool) -> Verdict:
    expected = Expectation(theirs, LSN + 8, **facts)
    return compare(ForkKind.MAIN, 7, ours, expected, has_checksum=False).verdict


HEAP = page()
HINTS = {
    "lsn": (0, b"\1"),
    "checksum": (8, b"\1\2"),
    "flags": (10, b"\7"),
    "prune xid": (20, b"\1\2\3\4"),
    "the hole": (28, b"leftover"),
    "command id": (TUPLE_AT + 8, b"\5"),
    "hint bits": (TUPLE_AT + 20, struct.pack("<H", 0x0100 | 0x0400 | 0x0020)),
    "padding": (TUPLE_AT + 36, b"\xff"),
}


@pytest.mark.parametrize("name", HINTS)
def test_changes_without_wal_are_not_damage(name: str) -> None:
    at, data = HINTS[name]
    assert masked(changed(HEAP, at, data), 7) == masked(HEAP, 7)


@pytest.mark.parametrize("at", [12, 24, 26, TUPLE_AT, TUPLE_AT + 4, TUPLE_AT + 18, TUPLE_AT + 30])
def test_other_changes_are_damage(at: int) -> None:
    """Bounds, line pointer, xmin, xmax, number of attributes, data."""
    assert verdict(changed(HEAP, at, bytes([HEAP[at] ^ 4])), HEAP) is Verdict.DAMAGED


def test_locks_and_frozen_bits_are_not_masked() -> None:
    locked = changed(HEAP, TUPLE_AT + 20, struct.pack("<H", 0x0800 | 0x0080))
    assert verdict(locked, HEAP) is Verdict.DAMAGED
    frozen = changed(HEAP, TUPLE_AT + 20, struct.pack("<H", 0x0800 | 0x0300))
    assert verdict(frozen, HEAP) is Verdict.DAMAGED


def test_a_speculative_token_equals_the_tuple_itself() -> None:
    own = changed(HEAP, TUPLE_AT + 12, struct.pack("<HHH", 0, 7, 1))
    token = changed(HEAP, TUPLE_AT + 12, struct.pack("<HHH", 0x1234, 0x5678, 0xFFFE))
    assert masked(own, 7) == masked(token, 7)


SPECIALS = {
    PageKind.HEAP: b"",
    PageKind.BTREE: struct.pack("<IIIHH", 1, 2, 0, 0x1, 0),
    PageKind.HASH: struct.pack("<IIIHH", 1, 2, 3, 0x2, 0xFF80),
    PageKind.GIST: struct.pack("<QIHH", 9, 2, 0x1, 0xFF81),
    PageKind.GIN: struct.pack("<IHH", 5911, 0, 0x2),
    PageKind.SPGIST: struct.pack("<HHHH", 0x4, 0, 0, 0xFF82),
    PageKind.BRIN: struct.pack("<HHHH", 0, 0, 0, 0xF093),
    PageKind.SEQUENCE: struct.pack("<II", 0x1717, 0),
}


@pytest.mark.parametrize("kind", SPECIALS, ids=lambda kind: kind.value)
def test_the_special_area_shows_the_access_method(kind: PageKind) -> None:
    lower = 32 if kind is PageKind.GIN else 28
    found = page(lower, SPECIALS[kind])
    assert page_kind(found) is kind
    at = PAGE_BYTES - len(SPECIALS[kind]) - 40  # the first byte of its tuple
    other = changed(found, at, bytes([found[at] ^ 0xFF]))
    assert masked(other, 1) != masked(found, 1)


@pytest.mark.parametrize("kind", [PageKind.BTREE, PageKind.HASH, PageKind.GIST])
def test_a_dead_entry_of_a_leaf_is_a_hint_and_a_missing_one_is_not(kind: PageKind) -> None:
    found = page(28, SPECIALS[kind])
    (pointer,) = struct.unpack_from("<I", found, 24)
    dead = changed(found, 24, struct.pack("<I", pointer | 3 << 15))
    unused = changed(found, 24, struct.pack("<I", pointer & ~(3 << 15)))
    assert masked(dead, 1) == masked(found, 1) != masked(unused, 1)


def test_changes_after_the_position_are_not_damage() -> None:
    other = changed(HEAP, TUPLE_AT + 30, b"?")
    assert verdict(other, HEAP, is_moving=True) is Verdict.MOVING
    newer = changed(other, 4, struct.pack("<I", LSN + 9))
    assert verdict(newer, HEAP) is Verdict.NEWER
    assert verdict(other, None, is_known=False) is Verdict.UNKNOWN
    assert verdict(other, None) is Verdict.DAMAGED
    assert verdict(ZERO_PAGE, None) is Verdict.SAME
    assert verdict(ZERO_PAGE, HEAP) is Verdict.DAMAGED


def test_an_lsn_after_the_wal_and_a_wrong_checksum_are_damage() -> None:
    newer = changed(HEAP, 4, struct.pack("<I", LSN + 99))
    expected = Expectation(HEAP, LSN, is_moving=True, end_lsn=LSN + 98)
    found = compare(ForkKind.MAIN, 7, newer, expected, has_checksum=False)
    assert (found.verdict, "after the end of the WAL" in found.reason) == (Verdict.DAMAGED, True)
    right = changed(newer, 8, page_checksum(newer, 7).to_bytes(2, "little"))
    for content, verdict_of in ((right, Verdict.SAME), (newer, Verdict.DAMAGED)):
        found = compare(ForkKind.MAIN, 7, content, Expectation(HEAP, LSN), has_checksum=True)
        assert found.verdict is verdict_of, found.reason


def test_visibility_map_bits_are_compared_with_the_heap() -> None:
    header = HEAP[:24]
    none, some = header + bytes(PAGE_BYTES - 24), header + b"\x00\x07" + bytes(PAGE_BYTES - 26)
    assert list(extra_bits(1, some, none)) == [(32676, 3), (32677, 1)]
    visible = changed(HEAP, 10, b"\4")
    frozen = changed(visible, TUPLE_AT + 20, struct.pack("<H", 0x0800 | 0x0300))
    assert are_bits_valid(ALL_VISIBLE, visible)
    assert not are_bits_valid(ALL_VISIBLE, HEAP)
    assert not are_bits_valid(ALL_VISIBLE, None)
    assert not are_bits_valid(ALL_FROZEN, frozen)
    assert not are_bits_valid(ALL_VISIBLE | ALL_FROZEN, visible)
    assert are_bits_valid(ALL_VISIBLE | ALL_FROZEN, frozen)
    judged = []
    for heap in (visible, HEAP):
        expected = Expectation(
            none, LSN, are_bits_valid=lambda _, bits, h=heap: are_bits_valid(1, h)
        )
        judged.append(compare(ForkKind.VM, 0, some, expected, has_checksum=False).verdict)
    assert judged == [Verdict.SAME, Verdict.DAMAGED]
    assert compare(ForkKind.VM, 0, none, Expectation(some, LSN), has_checksum=False).verdict is (
        Verdict.SAME
    )


def test_blank_pages() -> None:
    empty = struct.pack("<IIHHHHHHI", 0, 0, 0, 0, 24, PAGE_BYTES, PAGE_BYTES, 0x2004, 0)
    assert is_blank(ZERO_PAGE)
    assert is_blank(empty + bytes(PAGE_BYTES - 24))
    assert not is_blank(HEAP)


def test_masks_accept_any_bytes() -> None:
    chance = random.Random(20261125)
    for _ in range(300):
        content = bytearray(page(28, chance.choice(list(SPECIALS.values()))))
        for _ in range(chance.randrange(1, 9)):
            content[chance.choice((chance.randrange(40), chance.randrange(PAGE_BYTES)))] = (
                chance.randrange(256)
            )
        once = masked(bytes(content), 1)
        assert masked(once, 1) == once


def test_checksums_of_many_pages_are_those_of_each() -> None:
    pages = [HEAP, page(28, SPECIALS[PageKind.BTREE]), ZERO_PAGE]
    found = page_checksums(b"".join(pages), np.array([5, 6, 7], np.uint32))
    assert found.tolist() == [page_checksum(each, 5 + at) for at, each in enumerate(pages)]


def test_a_sample_is_spread_over_all_files() -> None:
    forks = [Fork(1663, 5, number, ForkKind.MAIN) for number in range(4)]
    lengths = dict(zip(forks, (0, 10, 1000, 90), strict=True))
    everything = choose_pages(lengths, None, random.Random(1))
    assert {fork: len(blocks) for fork, blocks in everything.items()} == {
        forks[1]: 10, forks[2]: 1000, forks[3]: 90,
    }  # fmt: skip
    for seed in range(20):
        some = choose_pages(lengths, 110, random.Random(seed))
        assert sum(map(len, some.values())) == 110
        for fork, blocks in some.items():
            assert blocks.tolist() == sorted(set(blocks.tolist()))
            assert blocks.max() < lengths[fork]
    assert choose_pages({}, 5, random.Random(1)) == {}
