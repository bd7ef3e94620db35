"""Random workloads, cut after cut: the engine's result equals the files of a standby.

python tests/contract/pageserver/random_epochs.py --pg-major 15 --seeds 0-50
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import click
from page_world import PageWorld, differences
from random_workload import RandomWorkload
from seed_runs import run_seeds
from touch_oracle import plain_survey
from wal_summaries import SUMMARIES_SINCE, is_summarizing, missing_blocks, summarized_blocks

from quorum_wal.pageserver.layers.touches import Touches
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries

SEGMENT_BYTES = 1 << 20
EPOCHS = 3
STEPS = 40
PROMOTION_CHANCE = 0.2


class NotEqual(Exception):
    """The engine and the standby, or the two surveys, do not agree."""


def run_seed(binaries: PostgresBinaries, root: Path, seed: int, epochs: int = EPOCHS) -> list[str]:
    """Works in the empty folder `root`. Returns the workload's steps. Raises NotEqual,
    PageserverError."""
    chance = random.Random(f"{seed} of epochs")
    server = Postgres(binaries, root / "primary", wal_seg_size=SEGMENT_BYTES)
    load = RandomWorkload(server, seed, lambda name: new_folder(world, name))
    server.init(*load.init_options())
    world = PageWorld(server, root)
    try:
        server.start()
        server.configure(**load.settings(), **summary_settings(binaries))
        world.start()
        load.run(STEPS // 2)
        world.take_base()
        for number in range(epochs):
            load.run(STEPS)
            if chance.random() < PROMOTION_CHANCE:
                load.move_to(world.promote())
            check_epoch(world, f"{number}")
    finally:
        load.close()
        world.primary.crash()
    return load.steps


def summary_settings(binaries: PostgresBinaries) -> dict[str, bool]:
    return {"summarize_wal": True} if binaries.major >= SUMMARIES_SINCE else {}


def new_folder(world: PageWorld, name: str) -> Path:
    """A folder for a tablespace."""
    path = world.root / name
    path.mkdir()
    world.server.give(path)
    return path


def check_epoch(world: PageWorld, name: str) -> Touches:
    """Makes one more cut and compares all results."""
    redo_lsn, target = world.redo_lsn, world.cut()
    touches = world.replay(target).touches
    plain = plain_survey(world.wal, redo_lsn, target.end_lsn, target.tli)
    pages = {
        (each.fork, int(block)): bool(needs_base)
        for each in touches.pages
        for block, needs_base in zip(each.blocks, each.needs_base, strict=True)
    }
    if pages != plain.pages:
        odd = sorted(set(pages.items()) ^ set(plain.pages.items()))
        raise NotEqual(f"the surveys differ: {odd[:5]}")
    if is_summarizing(world.primary):
        summarized = summarized_blocks(world, redo_lsn, target.redo_lsn, target.tli)
        missing = missing_blocks(touches, summarized)
        if missing:
            raise NotEqual(f"only Postgres' summaries have {sorted(missing)[:5]}")
    ours, theirs = world.virtual_full(f"ours-{name}"), world.oracle(f"theirs-{name}", target)
    found = differences(ours, theirs)
    if found:
        raise NotEqual(f"cut at {target.end_lsn:X}: {found[:5]}")
    shutil.rmtree(ours)
    shutil.rmtree(theirs)
    return touches


@click.command()
@click.option("--pg-major", type=int, default=None)
@click.option("--seeds", default="0-50", help="FIRST-LAST, without the last.")
def main(pg_major: int | None, seeds: str) -> None:
    def run(binaries: PostgresBinaries, root: Path, seed: int) -> str:
        return f"equal, after {len(run_seed(binaries, root, seed))} statements"

    run_seeds(pg_major, seeds, run)


if __name__ == "__main__":
    main()
