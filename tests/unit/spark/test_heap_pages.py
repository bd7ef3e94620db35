"""Pages of which most are in a temporary file, against a model that keeps all tuples in memory."""

from __future__ import annotations

import random

import pytest

from quorum_wal.pgwal.block_ref import BLOCK_SIZE, PageImage
from quorum_wal.spark.changes import page_spill, spill_file
from quorum_wal.spark.changes.heap_pages import HeapPages
from quorum_wal.spark.errors import SpillError

FILES, BLOCKS, LINES, STEPS = 2, 40, 6, 4000
#: of a tuple on a page before infomask2
LEFT_OUT = 18


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def page_image(tuples: dict[int, bytes]) -> PageImage:
    """A heap page with these tuples by line pointer."""
    lines, page, upper = bytearray(4 * LINES), bytearray(BLOCK_SIZE), BLOCK_SIZE
    for line, stored in tuples.items():
        upper -= LEFT_OUT + len(stored)
        page[upper + LEFT_OUT : upper + LEFT_OUT + len(stored)] = stored
        pointer = upper | 1 << 15 | LEFT_OUT + len(stored) << 17
        lines[4 * line - 4 : 4 * line] = pointer.to_bytes(4, "little")
    lower = 24 + len(lines)
    page[24:lower] = lines
    page[12:18] = b"".join(each.to_bytes(2, "little") for each in (lower, upper, BLOCK_SIZE))
    return PageImage(bytes(page[:lower] + page[upper:]), lower, upper - lower, None, True)


@pytest.mark.parametrize("memory_bytes", [1, 20_000, 1 << 30])
def test_any_order_of_changes(rng: random.Random, memory_bytes: int) -> None:
    pages = HeapPages(memory_bytes)
    model: dict[tuple[int, int], dict[int, bytes]] = {}
    for _ in range(STEPS):
        name, line = (rng.randrange(FILES), rng.randrange(BLOCKS)), rng.randrange(1, LINES + 1)
        stored = rng.randbytes(rng.randrange(6, 400))
        match rng.randrange(20):
            case 0:
                model[name] = {
                    each: rng.randbytes(rng.randrange(6, 400))
                    for each in range(1, LINES + 1) if rng.randrange(3)
                }  # fmt: skip
                pages.put_image(*name, page_image(model[name]))
            case number if number < 8:
                pages.put(*name, line, stored)
                model.setdefault(name, {})[line] = stored
            case _:
                assert pages.get(*name, line) == model.get(name, {}).get(line)
    pages.clear()
    assert all(pages.get(*name, line) is None for name in model for line in range(1, LINES + 1))


def test_the_oldest_pages_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_spill, "PAGES_MAX", 10)
    pages = HeapPages(memory_bytes=1)
    for block in range(20):
        pages.put(1, block, 1, bytes([block]))
    known = [block for block in range(20) if pages.get(1, block, 1) is not None]
    assert known == list(range(9, 20)), "ten in the file, one in memory"


def test_slots_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The file does not grow with the number of changes."""
    monkeypatch.setattr(spill_file, "SPILL_BYTES_MAX", 16 * 1024)
    pages = HeapPages(memory_bytes=1)
    for number in range(1000):
        pages.put(1, number % 8, 1, number.to_bytes(1000, "little"))
    for number in range(992, 1000):
        assert pages.get(1, number % 8, 1) == number.to_bytes(1000, "little")


def test_the_file_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "SPILL_BYTES_MAX", 16 * 1024)
    pages = HeapPages(memory_bytes=1)
    for block in range(9):
        pages.put(1, block, 1, bytes(2000))
    with pytest.raises(SpillError, match="have more than 16384 bytes"):
        pages.put(1, 9, 1, bytes(2000))
