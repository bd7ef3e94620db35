"""Layers: written pages are read back, by page and by run; a flipped bit is found; a stack of
layers gives the contents of the files."""

from __future__ import annotations

import random

import numpy as np
import pytest
from layer_files import (
    FORKS,
    Files,
    no_limits,
    open_layer,
    open_part,
    page,
    pages_of,
    random_files,
    random_history,
    write,
)

from quorum_wal.pageserver.errors import LayerDamaged
from quorum_wal.pageserver.layers.fork import Fork, ForkKind, parse_file
from quorum_wal.pageserver.layers.layer_file import Limits
from quorum_wal.pageserver.layers.page_stack import ZERO_PAGE, PageStack, read_one
from quorum_wal.pageserver.layers.touches import Database


def test_written_pages_are_read_back() -> None:
    chance = random.Random(1)
    for _ in range(20):
        files = random_files(chance, iter(range(1, 10_000)))
        parts = write(files, no_limits(), part_bytes=chance.choice((1, 600, 1 << 30)))
        layer = open_layer(parts)
        found: Files = {}
        for part in layer.parts:
            for run in part.pages():
                found.setdefault(run.fork, {}).update(
                    (block, bytes(content)) for block, content in run.pages()
                )
        assert found == files
        for fork in FORKS:
            own = files.get(fork, {})
            assert layer.blocks(fork).tolist() == sorted(own)
            wanted = np.array(sorted(chance.sample(range(120), 50)), np.uint32)
            read = pages_of(layer.read(fork, wanted))
            assert read == {block: own[block] for block in wanted.tolist() if block in own}


def test_limits_are_in_the_first_part_only() -> None:
    limits = Limits({FORKS[0]: 3}, frozenset([Database(1663, 9)]))
    files = {FORKS[0]: {block: page(block) for block in range(100)}}
    first, *others = [open_part(content) for content in write(files, limits, part_bytes=1)]
    assert first.limits == limits
    assert others
    assert all(part.limits == no_limits() for part in others)
    assert (limits.of(FORKS[0]), limits.of(FORKS[1])) == (3, None)
    assert limits.of(Fork(1663, 9, 1, ForkKind.MAIN)) == 0


def test_a_flipped_bit_is_found() -> None:
    (content,) = write({FORKS[0]: {block: page(block) for block in range(40)}}, no_limits())
    chance = random.Random(2)
    for _ in range(300):
        damaged = bytearray(content)
        damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        with pytest.raises(LayerDamaged, match='layer "k"'):
            list(open_part(bytes(damaged)).pages())
    for length in (0, 27, len(content) - 1):
        with pytest.raises(LayerDamaged):
            open_part(content[:length])


def test_a_stack_gives_the_contents_of_the_files() -> None:
    """For each layer: first removals, then changes."""
    for seed in range(40):
        chance = random.Random(seed)
        base, layers, files = random_history(chance, 4)[-1]
        stack = PageStack(base, layers)
        for fork in FORKS:
            wanted = np.arange(100, dtype=np.uint32)
            assert pages_of(stack.read(fork, wanted)) == files.get(fork, {}), f"seed {seed}"
            block = chance.randrange(100)
            expected = files.get(fork, {}).get(block, ZERO_PAGE)
            assert read_one(stack, fork, block) == expected, f"seed {seed}"


def test_names_of_files() -> None:
    for fork in (*FORKS, Fork(1663, 5, 16384, ForkKind.FSM)):
        for segment in (0, 1, 17):
            path = fork.file("PG_15_202209061", segment)
            assert parse_file(path) == (fork, segment)
    for path in ("base/5/PG_VERSION", "base/5/pg_filenode.map", "base/5/t3_16384", "base/16384",
                 "global/pg_control", "base/5/16384_abc", "../base/5/1"):  # fmt: skip
        assert parse_file(path) is None
