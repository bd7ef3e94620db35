"""Ranges read through cached blocks: the bytes of the store, with few requests."""

from __future__ import annotations

import random

from quorum_wal.pageserver.layers.range_cache import BLOCK_BYTES, BLOCKS_KEPT, RangeCache

SEED = 20261125


def test_it_returns_the_bytes_of_the_store() -> None:
    print(f"seed {SEED}")
    chance = random.Random(SEED)
    objects = {name: chance.randbytes(BLOCK_BYTES * 2 + 777) for name in ("a", "b")}
    asked: list[str] = []

    def get_range(key: str, begin: int, length: int) -> bytes:
        asked.append(key)
        return objects[key][begin : begin + length]

    cache = RangeCache(get_range)
    for _ in range(200):
        key, begin = chance.choice("ab"), chance.randrange(BLOCK_BYTES * 3)
        length = chance.choice((1, 4000, BLOCK_BYTES * 2))
        assert cache.read(key, begin, length) == objects[key][begin : begin + length]
    assert len(asked) <= 2 * 4  # including requests after the end of an object


def test_the_cache_is_limited() -> None:
    asked: list[int] = []

    def get_range(key: str, begin: int, length: int) -> bytes:
        asked.append(begin)
        return bytes(length)

    cache = RangeCache(get_range)
    for number in (*range(BLOCKS_KEPT + 1), BLOCKS_KEPT, 0):
        cache.read("a", number * BLOCK_BYTES, 1)
    assert len(asked) == BLOCKS_KEPT + 2
