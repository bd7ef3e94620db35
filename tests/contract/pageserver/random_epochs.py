"""Random workloads, cut after cut: what the engine makes of the WAL is what a standby has.

python tests/contract/pageserver/random_epochs.py --pg-major 15 --seeds 0-50
"""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import click
from page_world import PageWorld, differences
from random_workload import RandomWorkload
from touch_oracle import plain_survey

from pageserver.touches import Touches
from pg_fixtures.postgres import Postgres
from pg_server.binaries import PostgresBinaries, find_postgres

SEGMENT_BYTES = 1 << 20
EPOCHS = 3
STEPS = 40
PROMOTION_CHANCE = 0.2


class NotEqual(Exception):
    """The engine and the standby, or the two surveys, do not agree."""


def run_seed(binaries: PostgresBinaries, root: Path, seed: int, epochs: int = EPOCHS) -> list[str]:
    """In the empty folder `root`; what the workload did. Raises NotEqual, PageserverError."""
    chance = random.Random(f"{seed} of epochs")
    server = Postgres(binaries, root / "primary", wal_seg_size=SEGMENT_BYTES)
    load = RandomWorkload(server, seed, lambda name: new_folder(world, name))
    server.init(*load.init_options())
    world = PageWorld(server, root)
    try:
        server.start()
        server.configure(**load.settings())
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


def new_folder(world: PageWorld, name: str) -> Path:
    """For a tablespace."""
    path = world.root / name
    path.mkdir()
    world.server.give(path)
    return path


def check_epoch(world: PageWorld, name: str) -> Touches:
    """One more cut, at which all agree."""
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
    binaries = find_postgres(pg_major)
    failed = []
    for seed in range(*map(int, seeds.split("-"))):
        root = Path(tempfile.mkdtemp(prefix="epochs-"))
        root.chmod(0o755)
        try:
            steps = run_seed(binaries, root, seed)
        except Exception as error:
            failed.append(seed)
            click.echo(f"{binaries.major} seed {seed}: {type(error).__name__}: {error}  in {root}")
            continue
        click.echo(f"{binaries.major} seed {seed}: equal, after {len(steps)} statements")
        shutil.rmtree(root)
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
