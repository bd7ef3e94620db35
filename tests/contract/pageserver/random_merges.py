"""Random workloads with a moving horizon: merged layers give the same pages as before the merge.

python tests/contract/pageserver/random_merges.py --pg-major 15 --seeds 0-20
"""

from __future__ import annotations

import hashlib
import random
import shutil
from dataclasses import dataclass
from pathlib import Path

import click
from folder_survey import survey_folder
from page_world import PageWorld, differences
from random_epochs import SEGMENT_BYTES, NotEqual, new_folder
from random_workload import RandomWorkload
from seed_runs import run_seeds

from quorum_wal.generations.suffix import Suffix
from quorum_wal.pageserver.attachments.layer_merger import LayerMerger, LayerSurvey, MergeOrder
from quorum_wal.pageserver.cuts.cut_files import CutFiles
from quorum_wal.pageserver.cuts.cut_pages import open_layers
from quorum_wal.pageserver.cuts.page_objects import PageObjects
from quorum_wal.pageserver.cuts.virtual_full import write_virtual_full
from quorum_wal.pageserver.errors import PageNotFound
from quorum_wal.pageserver.layers.fork import Fork
from quorum_wal.pageserver.layers.frame import Frame
from quorum_wal.pageserver.layers.page_stack import Layer, LayerStack, PageStack
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pageserver.objects.page_index import Cut, FrameRef, LayerRef, PageIndex
from quorum_wal.pageserver.pitr.page_at import PageReader
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries

STEPS = 30
EPOCHS, PAGES = 5, 6
PART_BYTES = 1 << 20
OWN = Suffix.pack(1, 1, 1)


@dataclass(frozen=True)
class CutMade:
    """A cut of the world: its position, its frame, and the layers when it was made."""

    target: Checkpoint
    redo_lsn: int
    frame: Frame


@dataclass(frozen=True)
class Merged:
    """The result of a merge."""

    survey: LayerSurvey
    before_bytes: int
    after_bytes: int


def run_seed(
    binaries: PostgresBinaries, root: Path, seed: int, epochs: int = EPOCHS, pages: int = PAGES
) -> list[Merged]:
    """Works in the empty folder `root`. Raises NotEqual, PageserverError."""
    server = Postgres(binaries, root / "primary", wal_seg_size=SEGMENT_BYTES)
    load = RandomWorkload(server, seed, lambda name: new_folder(world, name))
    server.init(*load.init_options())
    world = PageWorld(server, root)
    try:
        server.start()
        server.configure(**load.settings())
        world.start()
        load.run(STEPS)
        world.take_base()
        merges = MergeWorld(world)
        for _ in range(epochs):
            load.run(STEPS)
            merges.cut()
    finally:
        load.close()
        world.primary.crash()
    chance = random.Random(f"{seed} of merges")
    found = [merges.check(horizon, chance, pages) for horizon in (1, epochs - 2)]
    merges.check_standby(epochs - 2)
    return found


class MergeWorld:
    """The cuts of a world in a store, with a moving horizon."""

    def __init__(self, world: PageWorld) -> None:
        archive = world.catalog.archive
        self.objects = PageObjects(archive.store, archive.timeline)
        self.index = PageIndex()
        self.cuts: list[CutMade] = []
        self._world = world
        self._seq = 0

    def cut(self) -> None:
        """Replays and stores one more cut."""
        target = self._world.cut()
        end_lsn = target.end_lsn
        output = self._world.replay(target)
        layers = [self._upload(end_lsn, part, path) for part, path in enumerate(output.parts)]
        self._seq += 1
        frame = FrameRef(end_lsn, OWN, self._seq, output.frame.path.stat().st_size)
        self.objects.upload(frame, output.frame.path)
        at = int(target.at.timestamp())
        cut = Cut(target.redo_lsn, target.start_lsn, end_lsn, target.tli, at)
        self.index = self.index.with_cut(cut, layers, [frame], "base")
        self.cuts.append(CutMade(target, self._world.redo_lsn, output.frame))

    def _upload(self, end_lsn: int, part: int, path: Path) -> LayerRef:
        self._seq += 1
        ref = LayerRef(end_lsn, part, OWN, self._seq, path.stat().st_size)
        self.objects.upload(ref, path)
        return ref

    # ---- merging

    def check(self, horizon: int, chance: random.Random, pages: int) -> Merged:
        """Merges all layers up to that cut. Raises NotEqual."""
        kept = self.cuts[horizon:]
        points = [self._page_asked(chance.choice(kept), chance) for _ in range(pages)]
        fulls = [self._digests(made) for made in kept]
        found = [self._page(*point) for point in points]
        merged = self._merge(self.index.cuts[horizon])
        for made, full in zip(kept, fulls, strict=True):
            if odd := sorted(full.items() ^ self._digests(made).items()):
                raise NotEqual(f"the cut at {made.target.end_lsn:X} has changed: {odd[:5]}")
        for point, content in zip(points, found, strict=True):
            if self._page(*point) != content:
                raise NotEqual(f"{point[1]}, block {point[2]}, is another one")
        return merged

    def _merge(self, cut: Cut) -> Merged:
        world, old = self._world, self.index.layers
        layers = tuple(layer for layer in old if layer.end_lsn <= cut.end_lsn)
        order = MergeOrder(self.index, cut, layers)
        folder = world.root / "merge"
        merger = LayerMerger(self.objects, folder, lambda: True, part_bytes=PART_BYTES)
        survey = merger.survey(order)
        parts: list[LayerRef] = []
        merger.merge(
            order,
            world.files.forks(),
            lambda path: parts.append(self._upload(cut.end_lsn, len(parts), path)),
        )
        self.index = self.index.with_merged(parts, layers)
        pages = sum(self.objects.open_layer(ref).page_count for ref in parts)
        if pages != survey.live_pages:
            raise NotEqual(f"{survey.live_pages} pages are alive, and {pages} were merged")
        return Merged(
            survey,
            sum(layer.size_bytes for layer in old),
            sum(layer.size_bytes for layer in self.index.layers),
        )

    # ---- reads

    def _layers(self, made: CutMade) -> list[Layer]:
        refs = [ref for ref in self.index.layers if ref.end_lsn <= made.target.end_lsn]
        return open_layers(self.objects, refs)

    def _files(self, made: CutMade) -> CutFiles:
        forks, spaces = made.frame.forks, made.frame.tablespaces
        layers = LayerStack(self._layers(made))
        return CutFiles(self._world.catalog, self._world.backup, forks, spaces, layers)

    def _digests(self, made: CutMade) -> dict[tuple[Fork, int], str]:
        """Digests of all relation files; the others are in the frame, which no merge changes."""
        files, found = self._files(made), {}
        for oid in (*made.frame.tablespaces, None):
            for file in files.of_tablespace(oid):
                digest = hashlib.sha256()
                for piece in file.pieces:
                    digest.update(piece)
                found[file.fork, file.segment] = digest.hexdigest()
        return found

    def check_standby(self, cut: int) -> None:
        """Compares a virtual full of that cut with a standby stopped there."""
        world, made = self._world, self.cuts[cut]
        ours = world.root / "ours"
        ours.mkdir(mode=0o700)
        world.server.give(ours)
        write_virtual_full(
            ours, made.frame, self._files(made), pg_major=world.facts.pg_major,
            give=world.server.give,
        )  # fmt: skip
        theirs = world.oracle("theirs", made.target)
        if found := differences(ours, theirs):
            raise NotEqual(f"cut at {made.target.end_lsn:X}: {found[:5]}")
        shutil.rmtree(ours)
        shutil.rmtree(theirs)

    def _page_asked(self, made: CutMade, chance: random.Random) -> tuple[CutMade, Fork, int, int]:
        """Chooses a page of that cut, and a position up to the next cut, if there is one."""
        ends = [each.target.end_lsn for each in self.cuts if each.target.end_lsn > made.redo_lsn]
        end_lsn = made.target.end_lsn
        behind = [each for each in ends if each > end_lsn]
        lsn = chance.randrange(end_lsn, behind[0]) if behind else end_lsn
        forks = [fork for fork in sorted(made.frame.forks) if made.frame.forks[fork]]
        fork = chance.choice(forks)
        return made, fork, chance.randrange(made.frame.forks[fork]), lsn

    def _page(self, made: CutMade, fork: Fork, block: int, lsn: int) -> bytes | None:
        """Returns None if the page does not exist or is unknown, before and after a merge."""
        world, target = self._world, made.target
        work_dir = world.root / "page"
        work_dir.mkdir()
        point = RestorePoint(
            made.frame, PageStack(world.base, self._layers(made)), world.wal,
            made.redo_lsn, target.end_lsn, lsn, target.tli,
            survey_folder(world.wal, made.redo_lsn, lsn, target.tli),
        )  # fmt: skip
        try:
            return PageReader(work_dir, world.server).read(point, fork, block).content
        except PageNotFound:
            return None
        finally:
            shutil.rmtree(work_dir)


@click.command()
@click.option("--pg-major", type=int, default=None)
@click.option("--seeds", default="0-20", help="FIRST-LAST, without the last.")
def main(pg_major: int | None, seeds: str) -> None:
    def run(binaries: PostgresBinaries, root: Path, seed: int) -> str:
        merges = run_seed(binaries, root, seed)
        return "equal; " + ", ".join(
            f"{each.survey.live_pages} of {each.survey.all_pages} pages left,"
            f" {each.before_bytes} bytes before, {each.after_bytes} after"
            for each in merges
        )

    run_seeds(pg_major, seeds, run)


if __name__ == "__main__":
    main()
