"""Layers: what was written is read, by page and by run; a flipped bit is found; a stack of layers
is what happened to the files."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import IO

import numpy as np
import pytest

from pageserver.errors import LayerDamaged
from pageserver.fork import PAGE_BYTES, Fork, ForkKind, parse_file
from pageserver.layer_file import Epoch, LayerPart, Limits, write_layer
from pageserver.page_run import PageRun, Run, consecutive
from pageserver.page_stack import ZERO_PAGE, Layer, PageStack, read_one
from pageserver.touches import Database, Numbers

EPOCH = Epoch(7, 100, 200)
FORKS = [Fork(1663, 5, 16384, ForkKind.MAIN), Fork(1663, 5, 16384, ForkKind.VM),
         Fork(1664, 0, 1262, ForkKind.MAIN), Fork(24576, 5, 16390, ForkKind.INIT)]  # fmt: skip
Files = dict[Fork, dict[int, bytes]]


class Kept(io.BytesIO):
    """What was written stays after close()."""

    content = b""

    def close(self) -> None:
        self.content = self.getvalue()
        super().close()


def page(number: int) -> bytes:
    return number.to_bytes(8, "little") * (PAGE_BYTES // 8)


def runs(files: Files) -> Iterator[PageRun]:
    for fork in sorted(files):
        blocks = np.array(sorted(files[fork]), np.uint32)
        for at, _, count in consecutive(blocks, 7):
            data = b"".join(files[fork][block] for block in blocks[at : at + count].tolist())
            yield PageRun(fork, blocks[at : at + count], memoryview(data))


def write(files: Files, limits: Limits, part_bytes: int = 1 << 30) -> list[bytes]:
    parts: list[Kept] = []

    def open_part(number: int) -> IO[bytes]:
        assert number == len(parts)
        parts.append(Kept())
        return parts[-1]

    assert write_layer(EPOCH, limits, runs(files), open_part, part_bytes=part_bytes) == len(parts)
    return [part.content for part in parts]


def open_part(content: bytes) -> LayerPart:
    return LayerPart("k", len(content), lambda at, length: content[at : at + length])


def open_layer(parts: list[bytes]) -> Layer:
    return Layer([open_part(content) for content in parts])


def random_files(chance: random.Random, numbers: Iterator[int]) -> Files:
    return {
        fork: {
            block: page(next(numbers)) for block in chance.sample(range(90), chance.randint(1, 80))
        }
        for fork in chance.sample(FORKS, chance.randint(0, len(FORKS)))
    }


def no_limits() -> Limits:
    return Limits({}, frozenset())


def test_pages_come_back_by_any_question() -> None:
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


def pages_of(read: Iterator[Run]) -> dict[int, bytes]:
    return {
        block: bytes(data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])
        for blocks, data in read
        for at, block in enumerate(blocks.tolist())
    }


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


class Base:
    """Below all layers."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        own = self._files.get(fork, {})
        here = [block for block in blocks.tolist() if block in own]
        if here:
            data = b"".join(own[block] for block in here)
            yield np.array(here, np.uint32), memoryview(data)


def test_a_stack_is_what_happened_to_the_files() -> None:
    """Layer by layer: first what is gone, then what was changed."""
    for seed in range(40):
        chance, numbers = random.Random(seed), iter(range(1, 100_000))
        files = random_files(chance, numbers)
        base, layers = Base({fork: dict(own) for fork, own in files.items()}), []
        for _ in range(4):
            blocks = {fork: chance.randrange(100) for fork in FORKS if chance.random() < 0.4}
            gone = frozenset([Database(1663, 5)]) if chance.random() < 0.2 else frozenset()
            limits = Limits(blocks, gone)
            for fork, own in files.items():
                limit = limits.of(fork)
                files[fork] = {b: p for b, p in own.items() if limit is None or b < limit}
            changed = random_files(chance, numbers)
            for fork, own in changed.items():
                files.setdefault(fork, {}).update(own)
            layers.append(open_layer(write(changed, limits)))
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
