"""Compares single pages at a position with the files of a full copy promoted there.

python tests/contract/pageserver/random_pages.py --pg-major 15 --seeds 0-10 --pages 100
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
from folder_survey import survey_folder
from page_world import PageWorld
from random_epochs import SEGMENT_BYTES, NotEqual, new_folder
from random_workload import RandomWorkload
from seed_runs import run_seeds

from quorum_wal.pageserver.epochs.in_place_tablespaces import link_range
from quorum_wal.pageserver.errors import PageNotFound
from quorum_wal.pageserver.layers.fork import PAGE_BYTES, SEGMENT_BLOCKS, Fork, ForkKind
from quorum_wal.pageserver.layers.fork_table import read_fork_table
from quorum_wal.pageserver.layers.page_header import PageHeader, page_checksum
from quorum_wal.pageserver.layers.touches import Database, Touches
from quorum_wal.pageserver.pitr.page_at import PageOrigin, PageReader
from quorum_wal.pageserver.pitr.page_wal import PageWal
from quorum_wal.pageserver.pitr.promoted_server import PromotedServer, ServerLimits, StopPoint
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import Lsn

STEPS = 30
PREPARED, LOCKS = 100, 10_000


class Replayed(NamedTuple):
    """The number of replayed pages, and for how many of them all WAL was replayed."""

    pages: int
    with_all_wal: int


def run_seed(binaries: PostgresBinaries, root: Path, seed: int, pages: int) -> Replayed:
    """Works in the empty folder `root`. Raises NotEqual, PageserverError."""
    chance = random.Random(f"{seed} of pages")
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
        load.run(STEPS)
        cut = world.cut()
        world.replay(cut)
        load.run(STEPS)
        ((target,),) = server.execute("SELECT pg_current_wal_insert_lsn()::text")
        world.switch_wal()
    finally:
        load.close()
        world.primary.crash()
    target_lsn = int(Lsn.parse(target))
    point = RestorePoint(
        world.frame, world.stack(), world.wal, world.redo_lsn, cut.end_lsn, target_lsn, cut.tli,
        survey_folder(world.wal, world.redo_lsn, target_lsn, cut.tli),
    )  # fmt: skip
    with full_copy(world, point.stop) as full:
        return _compare(world, point, point.touches, full, chance, pages)


@contextmanager
def full_copy(world: PageWorld, stop: StopPoint) -> Iterator[Path]:
    """A server on a full base backup, promoted at the position. It runs no queries."""
    data_dir = world.unpacked("full")
    begin_lsn = world.backup.start_lsn
    whole = survey_folder(world.wal, begin_lsn, stop.end_lsn, stop.tli)
    link_range(
        world.wal, begin_lsn, stop.end_lsn, stop.tli, whole.touches.tablespaces_created,
        data_dir, world.server.give,
    )  # fmt: skip
    with PromotedServer(world.server, data_dir, stop, ServerLimits(PREPARED, LOCKS)):
        yield data_dir


def _compare(
    world: PageWorld, point: RestorePoint, touches: Touches, full: Path, chance: random.Random,
    pages: int,
) -> Replayed:  # fmt: skip
    table = read_fork_table(full)
    # The end of recovery creates unlogged relations again.
    # Pages of a database that is copied file by file are refused.
    copies = {copy for _, copy in touches.copied_databases}
    logged = [
        fork
        for fork in sorted(table)
        if replace(fork, kind=ForkKind.INIT) not in table
        and Database(fork.tablespace, fork.database) not in copies
    ]
    work_dir = world.root / "work"
    work_dir.mkdir()
    reader = PageReader(work_dir, world.server)
    folder = world.frame.control_file().version_folder(world.facts.pg_major)
    replayed = with_all_wal = 0
    for _ in range(pages):
        fork, block = _draw(chance, logged, table, touches)
        path = full / fork.file(folder, block // SEGMENT_BLOCKS)
        at = block % SEGMENT_BLOCKS * PAGE_BYTES
        expected = path.read_bytes()[at : at + PAGE_BYTES]
        of_page = PageWal(world.facts, fork, block)
        surveyed = survey_folder(
            world.wal, point.redo_lsn, point.target_lsn, point.tli, of_page
        )  # fmt: skip
        found = reader.read(replace(point, surveyed=surveyed), fork, block)
        if found.content != expected:
            raise NotEqual(f"block {block} of {fork} differs, found in {found.origin}")
        checksum = PageHeader.parse(expected).checksum
        if checksum and checksum != page_checksum(expected, block):
            raise NotEqual(f"the checksum of block {block} of {fork} is computed otherwise")
        is_replayed = found.origin is PageOrigin.REPLAYED
        replayed += is_replayed
        with_all_wal += is_replayed and not of_page.is_enough(fork, block, point.tli, touches)
    _check_what_is_not_there(reader, point, logged[0], table[logged[0]])
    return Replayed(replayed, with_all_wal)


def _draw(
    chance: random.Random, forks: list[Fork], table: dict[Fork, int], touches: Touches
) -> tuple[Fork, int]:
    """Two of three pages are touched after the cut."""
    if chance.random() < 0.66:
        named = [
            (each.fork, int(block))
            for each in touches.pages
            if each.fork in forks
            for block in each.blocks[each.blocks < np.uint32(table[each.fork])]
        ]
        return chance.choice(named)
    fork = chance.choice([each for each in forks if table[each]])
    return fork, chance.randrange(table[fork])


def _check_what_is_not_there(
    reader: PageReader, point: RestorePoint, fork: Fork, length: int
) -> None:
    for wanted, block in ((fork, length), (Fork(1663, 1, 4_000_000_000, ForkKind.MAIN), 0)):
        try:
            reader.read(point, wanted, block)
        except PageNotFound:
            continue
        raise NotEqual(f"block {block} of {wanted} was found")


@click.command()
@click.option("--pg-major", type=int, default=None)
@click.option("--seeds", default="0-10", help="FIRST-LAST, without the last.")
@click.option("--pages", default=100)
def main(pg_major: int | None, seeds: str, pages: int) -> None:
    def run(binaries: PostgresBinaries, root: Path, seed: int) -> str:
        replayed = run_seed(binaries, root, seed, pages)
        return (
            f"{pages} pages equal, {replayed.pages} replayed, {replayed.with_all_wal} of them with "
            "all WAL"
        )

    run_seeds(pg_major, seeds, run)


if __name__ == "__main__":
    main()
