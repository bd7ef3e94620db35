"""Compares pages with those of servers, after random statements of all kinds:

    a primary that was stopped, one that runs, and
    one that is written to at the same time            a check finds no damage in any page
    a standby, paused at a position                    `page get` returns the same pages, and a
                                                       check finds no damage
    a primary that was killed, with damaged pages      repaired, it starts, and no page is damaged

python tests/contract/pageserver/random_checks.py --pg-major 15 --seeds 0-4 --pages 1000
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path
from threading import Event

import click
import numpy as np
from folder_survey import survey_folder
from page_world import TIMEOUT, PageWorld
from random_epochs import SEGMENT_BYTES, NotEqual, new_folder
from random_workload import RandomWorkload
from seed_runs import run_seeds

from quorum_wal.pageserver.checks.check_report import CheckReport
from quorum_wal.pageserver.checks.directory_check import DataDirectory, DirectoryCheck
from quorum_wal.pageserver.checks.page_mask import masked
from quorum_wal.pageserver.checks.page_repair import PageRepair
from quorum_wal.pageserver.checks.page_sample import choose_pages
from quorum_wal.pageserver.checks.server_check import ServerCheck
from quorum_wal.pageserver.checks.server_pages import ServerPages
from quorum_wal.pageserver.epochs.in_place_tablespaces import link_range
from quorum_wal.pageserver.layers.fork import DEFAULT_TABLESPACE, PAGE_BYTES, ForkKind
from quorum_wal.pageserver.layers.fork_table import fork_blocks
from quorum_wal.pageserver.layers.page_stack import ZERO_PAGE
from quorum_wal.pageserver.layers.touches import Checkpoint
from quorum_wal.pageserver.pitr.page_at import PageReader
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn, format_lsn

STEPS, SPOILT = 25, 4


class CheckedWorld:
    """A primary with a cut, and statements after it."""

    def __init__(self, binaries: PostgresBinaries, root: Path, seed: int) -> None:
        self.root = root
        self.chance = random.Random(f"{seed} of checks")
        self.primary = Postgres(binaries, root / "primary", wal_seg_size=SEGMENT_BYTES)
        self.load = RandomWorkload(self.primary, seed, lambda name: new_folder(self.world, name))
        self.primary.init(*self.load.init_options())
        self.world = PageWorld(self.primary, root)

    def prepare(self) -> bool:
        """Returns whether its pages can be read."""
        self.primary.start()
        can_ask = has_pageinspect(self.primary)
        if can_ask:
            self.primary.execute("CREATE EXTENSION pageinspect")
        self.primary.configure(**self.load.settings())
        self.world.start()
        self.load.run(STEPS)
        self.world.take_base()
        self.load.run(STEPS)
        self.target: Checkpoint = self.world.cut()
        self.world.replay(self.target)
        self.load.run(STEPS)
        self.primary.execute("CHECKPOINT")  # so that recovery begins after the cut
        self.load.run(STEPS // 5)
        return can_ask

    def reader(self) -> PageReader:
        work_dir = self.root / "work"
        work_dir.mkdir(exist_ok=True)
        return PageReader(work_dir, self.world.server)

    def point(self, moment: RecoveryTarget) -> RestorePoint:
        world = self.world
        assert moment.lsn is not None
        return RestorePoint(
            world.frame, world.stack(), world.wal, world.redo_lsn, self.target.end_lsn,
            moment.lsn, self.target.tli,
            survey_folder(world.wal, world.redo_lsn, moment.lsn, self.target.tli),
        )  # fmt: skip

    def archive_wal(self) -> None:
        """Archives all WAL; Postgres would not switch an empty segment."""
        self.primary.execute("SELECT pg_logical_emit_message(false, 'checks', '')")
        self.world.switch_wal()

    def check_running(self) -> CheckReport:
        """Checks all pages of the primary's first database."""

        def open_point(moment: RecoveryTarget) -> RestorePoint:
            self.archive_wal()
            return self.point(moment)

        with ServerPages.connect(self.primary.dsn()) as pages:
            checked = ServerCheck(pages, self.reader(), SEGMENT_BYTES)
            return checked.run(open_point, None, self.chance)

    def directory(self) -> DataDirectory:
        history = TimelineHistory(self.target.tli, ())
        return DataDirectory.open(self.primary.data_dir, self.world.facts, history)

    def check_stopped(self) -> CheckReport:
        """Checks all files of the stopped primary."""
        check = DirectoryCheck(self.directory(), self.reader())
        return check.run(self.point, None, self.chance)

    def spoil_and_mend(self) -> int:
        """Damages and repairs pages of the stopped primary. Returns the number of pages."""
        directory = self.directory()
        lengths = {
            fork: length
            for fork, length in self.world.frame.forks.items()
            if (fork_blocks(directory.path, fork, "") or 0) >= length > 0
            and fork.tablespace == DEFAULT_TABLESPACE
            and fork.kind is ForkKind.MAIN
        }
        chosen = choose_pages(lengths, SPOILT, self.chance)
        pages = [(fork, block) for fork, blocks in chosen.items() for block in blocks.tolist()]
        for fork, block in pages:
            with (directory.path / fork.path("")).open("r+b") as file:
                file.seek(block * PAGE_BYTES)
                file.write(self.chance.randbytes(PAGE_BYTES))
        for fork, block in pages:
            mender = PageRepair(directory)
            repair = mender.plan(self.point, self.reader(), fork, block)
            mender.write(repair, datetime.now(UTC))
        return len(pages)


def has_pageinspect(server: Postgres) -> bool:
    """The Postgres of the wheel does not have it."""
    return bool(server.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'pageinspect'"))


def run_seed(binaries: PostgresBinaries, root: Path, seed: int, pages: int) -> str:
    """Works in the empty folder `root`. Returns a summary. Raises NotEqual, PageserverError."""
    world = CheckedWorld(binaries, root, seed)
    said = []
    try:
        can_ask = world.prepare()
        if can_ask:
            said.append(f"running: {_sound(world.check_running())}")
            with busy(world.primary, world.chance):
                said.append(f"busy: {_sound(world.check_running())}")
        ((target,),) = world.primary.execute("SELECT pg_current_wal_insert_lsn()::text")
        world.archive_wal()
        world.load.close()
        if can_ask:
            world.primary.crash()
            said.append(f"crashed: {_sound(world.check_stopped())}")
            mended = world.spoil_and_mend()
            world.primary.start()
            said.append(f"{mended} mended: {_sound(world.check_running())}")
            world.archive_wal()
        world.primary.stop()
        said.append(f"stopped: {_sound(world.check_stopped())}")
        if can_ask and pages:
            said.append(f"gated: {compare_gated(world, int(Lsn.parse(target)), pages)} equal")
    finally:
        world.load.close()
        world.primary.crash()
    return "; ".join(said)


def _sound(report: CheckReport) -> str:
    if not report.is_sound:
        raise NotEqual(f"{report.checked} checked; {[str(each) for each in report.damaged[:5]]}")
    return f"{report.checked} sound, but {report.skips()}"


@contextmanager
def busy(server: Postgres, chance: random.Random) -> Iterator[None]:
    """Runs statements on one table, one after another, while the block runs."""
    server.execute("CREATE TABLE busy AS SELECT g, md5(g::text) t FROM generate_series(1, 3000) g")
    server.execute("CREATE INDEX ON busy (g)")
    statements = (
        "UPDATE busy SET t = t || 'x' WHERE g % 7 = 0",
        "DELETE FROM busy WHERE g % 5 = 1",
        "INSERT INTO busy SELECT g, md5(g::text) FROM generate_series(1, 500) g",
        "VACUUM (FREEZE) busy",
        "VACUUM busy",
        "SELECT count(*) FROM busy",
    )
    chosen = [chance.choice(statements) for _ in range(1000)]
    is_done = Event()

    def write() -> None:
        for statement in cycle(chosen):
            if is_done.is_set():
                return
            server.execute(statement)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            yield
        finally:
            is_done.set()
        writing.result()


# ---- a standby that is queried


def compare_gated(world: CheckedWorld, target_lsn: int, pages: int) -> int:
    """Compares random pages at a position with those in shared buffers of a standby paused
    there."""
    point = world.point(RecoveryTarget(lsn=target_lsn))
    records = [
        int(lsn)
        for index in world.world.wal.records(world.world.redo_lsn, target_lsn, point.tli)
        for lsn in index.start_lsn
        if lsn >= world.target.end_lsn
    ]
    at = world.chance.choice(records)
    with gated(world, at) as standby, ServerPages.connect(standby.dsn()) as server:
        forks = server.inventory().forks
        lengths = {fork: served.length for fork, served in forks.items()}
        chosen = choose_pages(lengths, pages, world.chance)
        wanted = [
            (forks[fork], block) for fork, blocks in chosen.items() for block in blocks.tolist()
        ]
        batch = server.read(wanted)
        stood = world.point(RecoveryTarget(lsn=batch.end_lsn))
        check = ServerCheck(server, world.reader(), SEGMENT_BYTES)
        _sound(check.run(lambda _: stood, pages, world.chance))
    if batch.before_lsn != batch.end_lsn or batch.skipped or batch.refused:
        raise NotEqual(f"the standby did not stand still: {batch.skipped} {batch.refused}")
    with world.reader().open(stood, chosen) as found:
        for fork, blocks in chosen.items():
            ours = found.read(fork, np.sort(blocks))
            for block in blocks.tolist():
                theirs = batch.pages[fork, block]
                # Files are extended without WAL: such a page does not exist or is all zeros.
                if masked(ours.get(block, ZERO_PAGE), block) != masked(theirs, block):
                    raise NotEqual(f"block {block} of {fork} differs at {batch.end_lsn:X}")
    return len(batch.pages)


@contextmanager
def gated(world: CheckedWorld, record_lsn: int) -> Iterator[Postgres]:
    """A standby on a full copy of the base backup, paused after the replay of that record."""
    pages = world.world
    data_dir = pages.unpacked("gated")
    begin_lsn = pages.backup.start_lsn
    whole = survey_folder(pages.wal, begin_lsn, record_lsn + 1, world.target.tli)
    link_range(
        pages.wal, begin_lsn, whole.stop.end_lsn, whole.stop.tli, whole.touches.tablespaces_created,
        data_dir, pages.server.give,
    )  # fmt: skip
    (data_dir / "recovery.signal").touch()
    pages.server.give(data_dir / "recovery.signal")
    settings = {
        "archive_mode": "off",
        "restore_command": "'false'",
        "hot_standby": "on",
        "recovery_target_lsn": f"'{format_lsn(record_lsn)}'",
        "recovery_target_action": "pause",
        "allow_in_place_tablespaces": "on",
        "max_prepared_transactions": "10",
    }
    with (data_dir / "postgresql.conf").open("a") as file:
        file.writelines(f"{name} = {value}\n" for name, value in settings.items())
    with Postgres(world.primary.binaries, data_dir) as standby:
        wait_until(
            lambda: standby.execute("SELECT pg_get_wal_replay_pause_state()") == [("paused",)],
            TIMEOUT, "the standby to stop",
        )  # fmt: skip
        yield standby


@click.command()
@click.option("--pg-major", type=int, default=None)
@click.option("--seeds", default="0-4", help="FIRST-LAST, without the last.")
@click.option("--pages", default=1000, help="Of a standby, a seed.")
def main(pg_major: int | None, seeds: str, pages: int) -> None:
    run_seeds(pg_major, seeds, lambda binaries, root, seed: run_seed(binaries, root, seed, pages))


if __name__ == "__main__":
    main()
