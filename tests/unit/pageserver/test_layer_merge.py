"""Merged layers: reads at and above the horizon return the same pages."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from layer_files import (
    FORKS,
    ExpectedCut,
    Files,
    Kept,
    no_limits,
    open_layer,
    page,
    pages_of,
    random_history,
    write,
)

from quorum_wal.pageserver.layers.fork import Fork, ForkKind
from quorum_wal.pageserver.layers.layer_file import Epoch, LayerPart, Limits, write_layer
from quorum_wal.pageserver.layers.layer_merge import live_pages, merged_limits, merged_pages
from quorum_wal.pageserver.layers.page_stack import Layer, PageStack
from quorum_wal.pageserver.layers.read_ahead import ReadAhead
from quorum_wal.pageserver.layers.touches import Database

SEEDS = 8


def merged(layers: list[Layer], lengths: dict[Fork, int], base: dict[Fork, int]) -> list[bytes]:
    parts: list[Kept] = []

    def open_part(number: int) -> Kept:
        parts.append(Kept())
        return parts[-1]

    limits = merged_limits(layers, base)
    pages = merged_pages(layers, lengths)
    write_layer(Epoch(7, 0, 100), limits, pages, open_part, part_bytes=2000)
    return [part.content for part in parts]


def lengths_of(files: Files) -> dict[Fork, int]:
    return {fork: max(own) + 1 for fork, own in files.items() if own}


def read_all(stack: PageStack) -> Files:
    wanted = np.arange(120, dtype=np.uint32)
    return {fork: pages_of(stack.read(fork, wanted)) for fork in FORKS}


def check(cuts: list[ExpectedCut], horizon: int, seed: int) -> None:
    """Merges the layers up to `horizon`, as of that cut."""
    base, layers, files = cuts[horizon]
    parts = merged(layers, lengths_of(files), lengths_of(base.files))
    one = open_layer(parts)
    others = cuts[-1].layers[horizon + 1 :]
    for count in range(len(others) + 1):
        before = PageStack(base, [*layers, *others[:count]])
        after = PageStack(base, [one, *others[:count]])
        assert read_all(after) == read_all(before), f"seed {seed}, {count} above {horizon}"
    live = sum(len(each.blocks) for each in live_pages(layers, lengths_of(files)))
    assert one.page_count == live <= sum(layer.page_count for layer in layers)


def test_reads_are_the_same_after_a_merge() -> None:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        cuts = random_history(chance, 5)
        for horizon in range(5):
            check(cuts, horizon, seed)


def test_merged_layers_are_merged_again() -> None:
    for seed in range(SEEDS):
        chance = random.Random(seed)
        cuts = random_history(chance, 5)
        base, layers, files = cuts[2]
        one = open_layer(merged(layers, lengths_of(files), lengths_of(base.files)))
        again = [ExpectedCut(base, [one, *cut.layers[3:]], cut.files) for cut in cuts[2:]]
        check(again, 1, seed)


def test_dead_pages_are_omitted() -> None:
    """Replaced by a newer layer, truncated, fork dropped or shorter, database dropped."""
    longer, _, dropped, left = FORKS
    old = {fork: {block: page(block) for block in range(10)} for fork in FORKS}
    new: Files = {longer: {3: page(99)}}
    limits = Limits({longer: 7}, frozenset([Database(dropped.tablespace, dropped.database)]))
    layers = [open_layer(write(old, Limits({}, frozenset()))), open_layer(write(new, limits))]
    lengths = {longer: 9, dropped: 10, left: 4}
    found = {
        each.fork: list(zip(each.blocks.tolist(), each.layers.tolist(), strict=True))
        for each in live_pages(layers, lengths)
    }
    assert found == {
        longer: [(block, 1 if block == 3 else 0) for block in range(7)],
        left: [(block, 0) for block in range(4)],
    }


def test_limits_are_kept_for_pages_of_the_base() -> None:
    """Removed pages of the base stay removed. Limits above all pages of the base are dropped."""
    there, short, never, other = FORKS
    early = Limits({there: 5, short: 8, never: 0}, frozenset([Database(1663, 77)]))
    late = Limits({there: 9, short: 8}, frozenset([Database(other.tablespace, other.database)]))
    layers = [open_layer(write({}, limits)) for limits in (early, late)]
    base = {there: 6, short: 8, other: 1}
    fresh = frozenset([Database(other.tablespace, other.database)])
    assert merged_limits(layers, base) == Limits({there: 5}, fresh)


def test_many_layers_are_read_with_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte is read about once. With more layers than buffers the pages are still the same."""
    fork = Fork(1663, 5, 16384, ForkKind.MAIN)
    contents = [
        write({fork: {block: page(block) for block in range(number, 6000, 20)}}, no_limits())[0]
        for number in range(20)
    ]
    read_bytes: list[int] = []

    def opened(others: ReadAhead) -> list[Layer]:
        def part(key: str, content: bytes) -> LayerPart:
            def fetch(offset: int, length: int) -> bytes:
                read_bytes.append(length)
                return content[offset : offset + length]

            ahead = others.ahead(key, len(content), fetch)
            return LayerPart(key, len(content), ahead, partial(others.unpacked, key))

        return [Layer([part(f"{number}", each)]) for number, each in enumerate(contents)]

    def check_pages() -> None:
        found = merged_pages(opened(ReadAhead(20)), {fork: 6000})
        pages = [bytes(data) for run in found for _, data in run.pages()]
        assert pages == [page(block) for block in range(6000)]

    check_pages()
    assert sum(read_bytes) <= 2 * sum(map(len, contents))
    monkeypatch.setattr("quorum_wal.pageserver.layers.read_ahead.AHEAD_BYTES_MAX", 5 << 16)
    monkeypatch.setattr("quorum_wal.pageserver.layers.read_ahead.UNPACKED_BYTES_MAX", 5 << 18)
    check_pages()
