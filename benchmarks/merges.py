"""`merges`: the cost of merging many layers into one, from a store on the local disk.

    rows      pages like those of pgbench: rows of 100 bytes with a few changed numbers
    noise     pages that cannot be compressed

One large old layer, and many small ones above it with some of its pages, as in a week of a cluster.
No Postgres is needed. The figure is processor time, which does not depend on other work.
"""

from __future__ import annotations

import random
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from benchmarks.rounds import Spread, Verdict
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.generations.suffix import Suffix
from quorum_wal.objectstore.local import LocalStore
from quorum_wal.pageserver.attachments.layer_merger import LayerMerger, MergeOrder
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import ForkTable
from quorum_wal.pageserver.layers.frame import FrameWriter
from quorum_wal.pageserver.layers.layer_file import Epoch, Limits, write_layer
from quorum_wal.pageserver.layers.page_run import RUN_BLOCKS_MAX, PageRun
from quorum_wal.pageserver.layers.touches import Numbers
from quorum_wal.pageserver.objects.page_index import Cut, FrameRef, LayerRef, PageIndex

ROWS, NOISE = "rows", "noise"
RATE_MIN = {ROWS: 100.0, NOISE: 100.0}  # MB of pages written per second of processor time
RSS_MB_MAX = 600.0
BLOCKS = 40_000
LAYERS, LAYER_BLOCKS = 40, 1200
ROW_BYTES = 100
FORK = Fork(1663, 5, 16384, ForkKind.MAIN)
OWN = Suffix.pack(1, 1, 1)
COLUMNS = ("pages", "of", "left", "MB a CPU second", "MB a second", "read, MB", "written, MB",
           "survey, s", "RSS MB")  # fmt: skip


@dataclass(frozen=True, slots=True)
class MergeSample:
    """One merge. Rates are of the remaining pages, 8192 bytes each; `read_mb` and `written_mb` are
    compressed."""

    kind: str
    round: int
    all_pages: int
    live_pages: int
    mb_a_cpu_second: float
    mb_a_second: float
    read_mb: float
    written_mb: float
    survey_seconds: float
    rss_mb: float


def measure(directory: Path, rounds: int) -> Iterator[MergeSample]:
    """Yields each sample when it is taken."""
    materials = [_Material(directory / kind, kind) for kind in (ROWS, NOISE)]
    for number in range(rounds):
        for material in materials:
            yield material.sample(number)


class _Material:
    """Layers in a store."""

    def __init__(self, root: Path, kind: str) -> None:
        root.mkdir()
        self._root, self._kind = root, kind
        self._objects = PageObjects(
            LocalStore(str(root / "store")), TimelineId(bytes(16), bytes(16))
        )
        self._chance = random.Random(kind)
        self._index = PageIndex()
        self._seq = 0
        self._add(np.arange(BLOCKS, dtype=np.uint32))
        for _ in range(LAYERS):
            some = self._chance.sample(range(BLOCKS), LAYER_BLOCKS)
            self._add(np.array(sorted(some), np.uint32))

    def _add(self, blocks: Numbers) -> None:
        """Adds a layer and its cut."""
        end_lsn = 1000 * (len(self._index.cuts) + 1)
        paths: list[Path] = []

        def open_part(number: int) -> IO[bytes]:
            paths.append(self._root / f"new-{number}")
            return paths[-1].open("wb")

        epoch = Epoch(7, end_lsn - 1000, end_lsn)
        write_layer(epoch, Limits({}, frozenset()), self._runs(blocks), open_part)
        layers = []
        for part, path in enumerate(paths):
            self._seq += 1
            ref = LayerRef(end_lsn, part, OWN, self._seq, path.stat().st_size)
            self._objects.upload(ref, path)
            layers.append(ref)
        path = self._root / "frame"
        with FrameWriter(path) as writer:
            writer.finish(ForkTable({FORK: BLOCKS}), {})
        self._seq += 1
        frame = FrameRef(end_lsn, OWN, self._seq, path.stat().st_size)
        self._objects.upload(frame, path)
        cut = Cut(end_lsn - 50, end_lsn - 20, end_lsn, 1, end_lsn)
        self._index = self._index.with_cut(cut, layers, [frame])

    def _runs(self, blocks: Numbers) -> Iterator[PageRun]:
        for at in range(0, len(blocks), RUN_BLOCKS_MAX):
            own = blocks[at : at + RUN_BLOCKS_MAX]
            yield PageRun(FORK, own, memoryview(b"".join(map(self._page, own.tolist()))))

    def _page(self, block: int) -> bytes:
        if self._kind == NOISE:
            return self._chance.randbytes(PAGE_BYTES)
        rows = PAGE_BYTES // ROW_BYTES
        numbers = (block * rows, self._chance.randrange(1 << 30))
        row = b"".join(
            (numbers[0] + row).to_bytes(4, "little")
            + ((numbers[1] * row) & 0xFFFFFFFF).to_bytes(4, "little")
            + b" " * (ROW_BYTES - 8)
            for row in range(rows)
        )
        return row.ljust(PAGE_BYTES, b"\0")

    def sample(self, number: int) -> MergeSample:
        order = MergeOrder(self._index, self._index.cuts[-1], self._index.layers)
        work_dir = self._root / "merge"
        merger = LayerMerger(self._objects, work_dir, lambda: True)
        begun = time.monotonic()
        survey = merger.survey(order)
        survey_seconds = time.monotonic() - begun
        written: list[int] = []
        begun, cpu_begun = time.monotonic(), time.process_time()
        merger.merge(order, ForkTable(), lambda path: written.append(path.stat().st_size))
        cpu, seconds = time.process_time() - cpu_begun, time.monotonic() - begun
        shutil.rmtree(work_dir)
        page_mb = survey.live_pages * PAGE_BYTES / 1e6
        return MergeSample(
            kind=self._kind,
            round=number,
            all_pages=survey.all_pages,
            live_pages=survey.live_pages,
            mb_a_cpu_second=page_mb / cpu,
            mb_a_second=page_mb / seconds,
            read_mb=sum(layer.size_bytes for layer in order.layers) / 1e6,
            written_mb=sum(written) / 1e6,
            survey_seconds=survey_seconds,
            rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        )


def table(samples: Sequence[MergeSample]) -> list[list[str]]:
    """Medians."""
    rows = [list(COLUMNS)]
    for kind in dict.fromkeys(sample.kind for sample in samples):
        own = [sample for sample in samples if sample.kind == kind]
        names = ("all_pages", "live_pages", "mb_a_cpu_second", "mb_a_second", "read_mb",
                 "written_mb", "survey_seconds", "rss_mb")  # fmt: skip
        medians = [Spread.of([getattr(each, name) for each in own]).median for name in names]
        digits = [2 if name == "survey_seconds" else 0 for name in names]
        rows.append([kind, *(f"{m:.{d}f}" for m, d in zip(medians, digits, strict=True))])
    return rows


def verdicts(samples: Sequence[MergeSample]) -> list[Verdict]:
    """The rate for each kind of pages, and the memory."""
    found = []
    for kind, rate_min in RATE_MIN.items():
        rate = Spread.of([each.mb_a_cpu_second for each in samples if each.kind == kind])
        found.append(Verdict(f"{kind}: {rate_min:g} MB of pages a second of one core", rate,
                             rate_min, True))  # fmt: skip
    rss = Spread.of([each.rss_mb for each in samples])
    found.append(Verdict(f"memory below {RSS_MB_MAX:g} MB", rss, RSS_MB_MAX, False))
    return found
