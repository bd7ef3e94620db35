"""Layers in memory for tests: written, opened, and a random history of them."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork, ForkKind
from quorum_wal.pageserver.layers.layer_file import Epoch, LayerPart, Limits, write_layer
from quorum_wal.pageserver.layers.page_run import PageRun, Run, consecutive
from quorum_wal.pageserver.layers.page_stack import Layer
from quorum_wal.pageserver.layers.touches import Database, Numbers

EPOCH = Epoch(7, 100, 200)
FORKS = [Fork(1663, 5, 16384, ForkKind.MAIN), Fork(1663, 5, 16384, ForkKind.VM),
         Fork(1664, 0, 1262, ForkKind.MAIN), Fork(24576, 5, 16390, ForkKind.INIT)]  # fmt: skip
Files = dict[Fork, dict[int, bytes]]


class Kept(io.BytesIO):
    """Keeps its contents after close()."""

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


def pages_of(read: Iterator[Run]) -> dict[int, bytes]:
    return {
        block: bytes(data[at * PAGE_BYTES : (at + 1) * PAGE_BYTES])
        for blocks, data in read
        for at, block in enumerate(blocks.tolist())
    }


class Base:
    """The pages below all layers."""

    def __init__(self, files: Files) -> None:
        self.files = files

    def read(self, fork: Fork, blocks: Numbers) -> Iterator[Run]:
        own = self.files.get(fork, {})
        here = [block for block in blocks.tolist() if block in own]
        if here:
            data = b"".join(own[block] for block in here)
            yield np.array(here, np.uint32), memoryview(data)


@dataclass(frozen=True)
class ExpectedCut:
    """The base, the layers so far, and the expected contents of the files."""

    base: Base
    layers: list[Layer]
    files: Files

    def __iter__(self) -> Iterator[Any]:
        return iter((self.base, self.layers, self.files))


def random_history(chance: random.Random, count: int) -> list[ExpectedCut]:
    """For each layer: first removals, then changes."""
    numbers = iter(range(1, 100_000))
    files = random_files(chance, numbers)
    base = Base({fork: dict(own) for fork, own in files.items()})
    cuts: list[ExpectedCut] = []
    layers: list[Layer] = []
    for _ in range(count):
        blocks = {fork: chance.randrange(100) for fork in FORKS if chance.random() < 0.4}
        gone = frozenset([Database(1663, 5)]) if chance.random() < 0.2 else frozenset[Database]()
        limits = Limits(blocks, gone)
        for fork, own in files.items():
            limit = limits.of(fork)
            files[fork] = {b: p for b, p in own.items() if limit is None or b < limit}
        changed = random_files(chance, numbers)
        for fork, own in changed.items():
            files.setdefault(fork, {}).update(own)
        parts = write(changed, limits, part_bytes=chance.choice((1, 1 << 30)))
        layers = [*layers, open_layer(parts)]
        cuts.append(ExpectedCut(base, layers, {fork: dict(own) for fork, own in files.items()}))
    return cuts
