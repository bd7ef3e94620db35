"""A power loss at any place of all disk operations of a timeline: answered data stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from shutil import rmtree
from tempfile import TemporaryDirectory

import pytest
from lossy_timeline import LossyTimeline, Lost, check
from new_timeline import SERVER, TIMELINE, first_membership
from timeline_on_disk import HOOKS
from wal_log import PAGE_SIZE, START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.membership import Member
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper import wal_store
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.timelines import Timelines
from tests.dropping_disk import LOSSES, DroppingDisk, RandomLoss, write_tree
from tests.simulation.bugs_of_files import POWER_LOSS_PLANTS
from tests.simulation.planting import Plant, planted

SHM = Path("/dev/shm")
SEEDS = 4
STEPS = 30


@pytest.fixture
def folder() -> Iterator[Path]:
    """In memory, if there is such a folder: hundreds of disks are written."""
    with TemporaryDirectory(dir=SHM if SHM.is_dir() else None) as path:
        yield Path(path)


def fill_segment(log: WalLog, name: str) -> None:
    """Records up to one that ends exactly where its segment does."""
    log.append(f"{name}{log.lsn:X}")
    while (room := -log.lsn % WAL_SEG_SIZE) > 2 * PAGE_SIZE:
        log.append(f"{name}{log.lsn:X}", min(room - PAGE_SIZE, 60_000))
    log.fill_page(f"{name}{log.lsn:X}")
    if log.lsn % WAL_SEG_SIZE:
        log.fill_page(f"{name}{log.lsn:X}")


# ---- disk operations, case by case


def appends(world: LossyTimeline) -> None:
    """Records, also one that crosses the end of a segment and comes in two pieces."""
    world.take_over(START_LSN)
    world.log.append("R1")
    world.push()
    world.log.append("R2", 30_000)
    world.push(commits=True)
    fill_segment(world.log, "fill")
    world.log.append("R3", 60_000)
    world.push_part(world.log.lsn - world.timeline.positions.written_lsn - 100)
    world.push()
    world.timeline.close("the end")


def truncation_inside_a_segment(world: LossyTimeline) -> None:
    three_segments(world)
    cut_lsn = world.log.boundary_after(START_LSN + 400_000)
    world.take_over(cut_lsn)
    world.log.append("new", 3000)
    world.push()


def truncation_at_a_segments_start(world: LossyTimeline) -> None:
    """The old bytes would continue exactly where the log ends."""
    three_segments(world)
    world.take_over(START_LSN + WAL_SEG_SIZE)
    world.log.append("new", 3000)
    world.push()


def three_segments(world: LossyTimeline) -> None:
    world.disk.before = world.do_not_try
    world.take_over(START_LSN)
    for name in ("a", "b"):
        fill_segment(world.log, name)
    world.log.append("last", 20_000)
    world.push()
    world.disk.before = world.try_losses


def truncation_of_a_long_tail(world: LossyTimeline) -> None:
    """The tail is discarded, not overwritten."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wal_store, "ZEROS_BYTES_MAX", 100_000)
        truncation_inside_a_segment(world)
        world.kill()
        world.check_losses()


def timeline_switch(world: LossyTimeline) -> None:
    """Inside a segment: its file on the new timeline begins with the old one's bytes."""
    world.take_over(START_LSN)
    world.log.append("old", 200_000)
    world.push(commits=True)
    world.take_over(world.log.lsn, is_promoted=True)
    world.log.append("new", 3000)
    world.push()


def house_kept(world: LossyTimeline) -> None:
    """Spares, hints, and the removal of segments that are not needed."""
    three_segments(world)
    world.push(commits=True)
    world.timeline.maintain_files()
    fill_segment(world.log, "c")
    world.log.append("R", 2000)
    world.push(commits=True)
    world.remove_wal(START_LSN + 2 * WAL_SEG_SIZE)


def configured(world: LossyTimeline) -> None:
    """The members change while WAL comes; another leader takes over meanwhile."""
    world.take_over(START_LSN)
    world.log.append("R1", 20_000)
    world.push(commits=True)
    fourth = Member(4, b"the 4th!", "10.0.0.4", 5454, "there")
    world.configure(world.membership.joint_with(world.next_stamp(), (fourth,)))
    world.log.append("R2", 30_000)
    world.push(commits=True)
    world.take_over(world.floor_lsn)
    world.configure(world.membership.left_to(world.next_stamp(), (4,)))
    world.log.append("R3")
    world.push()
    world.kill()
    world.check_losses()


def killed_processes(world: LossyTimeline) -> None:
    """The next process finds bytes that are only in the page cache, and reports them."""
    world.take_over(START_LSN)
    world.log.append("R1", 20_000)
    world.push()
    for _ in range(2):
        world.log.append("R2", 30_000)
        world.write_unflushed()
        world.kill()
        world.check_losses()
        world.take_over(world.floor_lsn)
    world.log.append("R3")
    world.push()


class Killed(BaseException):
    """Not an Exception: no handler on the way may catch it."""


def killed_in_the_middle(world: LossyTimeline) -> None:
    """In an election, before each call to the disk. The next process reports what it finds."""
    world.take_over(START_LSN)
    world.log.append("R1", 20_000)
    world.push()
    calls_max = 14
    for calls in range(calls_max):
        left = [calls]

        def kill(call: str, path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Killed

        world.disk.before = kill
        try:
            world.take_over(world.floor_lsn)
        except Killed:
            world.disk.before = world.do_not_try
        else:
            break
        world.kill()
        world.check_losses()
    assert 8 < calls < calls_max - 1, "before each call of it, and then to its end"
    world.disk.before = world.try_losses


#: The fast ones first.
SHAPES: tuple[Callable[[LossyTimeline], None], ...] = (
    killed_in_the_middle,
    timeline_switch,
    configured,
    killed_processes,
    truncation_inside_a_segment,
    truncation_at_a_segments_start,
    house_kept,
    appends,
    truncation_of_a_long_tail,
)


def run(
    folder: Path, shape: Callable[[LossyTimeline], None], random_losses: int = 1
) -> LossyTimeline:
    world = LossyTimeline(folder / shape.__name__, random_losses=random_losses)
    with world.disk.watching():
        world.create()
        shape(world)
        world.check_losses()
        world.disk.check_complete()
    return world


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_answered_data_survives(folder: Path, shape: Callable[[LossyTimeline], None]) -> None:
    world = run(folder, shape)
    assert world.losses > 20


# ---- random operations


def live(world: LossyTimeline, random: Random) -> None:
    for _ in range(STEPS):
        random.choice(DEEDS)(world, random)
    world.check_losses()


def _write(world: LossyTimeline, random: Random) -> None:
    for _ in range(random.choice((1, 1, 3))):
        if random.random() < 0.2:
            fill_segment(world.log, f"fill{len(world.log.ends)}.")
        else:
            length = random.choice((64, 500, 9000, 300_000))
            world.log.append(f"R{world.log.lsn:X}.{random.random()}", length)
    world.push(commits=random.random() < 0.5)


def _take_over(world: LossyTimeline, random: Random) -> None:
    ends = [START_LSN, *world.log.ends]
    ends = [lsn for lsn in ends if world.commit_lsn <= lsn <= world.floor_lsn]
    cut_lsn = random.choice(ends + [world.floor_lsn] * len(ends))
    world.take_over(cut_lsn, is_promoted=random.random() < 0.3 and cut_lsn > START_LSN)


def _write_unflushed(world: LossyTimeline, random: Random) -> None:
    world.log.append(f"U{world.log.lsn:X}.{random.random()}", random.choice((64, 50_000)))
    world.write_unflushed()
    _end(world, random)


def _end(world: LossyTimeline, random: Random) -> None:
    """The process ends, or the machine."""
    if random.random() < 0.5:
        world.kill()
    else:
        world.lose_power(random.choice((*LOSSES, RandomLoss(random.getrandbits(32)))))
    world.take_over(world.floor_lsn)


def _configure(world: LossyTimeline, random: Random) -> None:
    membership, stamp = world.membership, world.next_stamp()
    if membership.is_joint:
        world.configure(membership.left_to(stamp, random.choice(membership.groups)))
    else:
        new = sorted(random.sample(range(1, 9), random.choice((1, 2, 3))))
        world.configure(membership.joint_with(stamp, tuple(map(Member, new))))


def _run_housekeeping(world: LossyTimeline, random: Random) -> None:
    world.timeline.maintain_files()
    commit_lsn = world.timeline.positions.commit_lsn  # one from before a power loss may be greater
    lsn = commit_lsn - commit_lsn % WAL_SEG_SIZE
    if random.random() < 0.5 and lsn > world.timeline.control.local_start_lsn:
        world.remove_wal(lsn)


DEEDS = (_write, _write, _write, _take_over, _write_unflushed, _end, _run_housekeeping, _configure)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_answered_data_survives_random_operations(folder: Path, seed: int) -> None:
    world = LossyTimeline(folder / "world", seed, every=8)
    with world.disk.watching():
        world.create()
        world.take_over(START_LSN)
        live(world, Random(f"life {seed}"))
        world.disk.check_complete()
    assert world.losses > 20


# ---- all timelines of a process


class LossyDataDirectory:
    """A data directory on a disk whose power may fail before every operation: an answered creation
    or deletion stays, and nothing is found damaged."""

    def __init__(self, root: Path) -> None:
        self.path = root / "machine" / "data"
        self._after = root / "after"
        self.path.parent.mkdir()
        self.disk = DroppingDisk(self.path.parent)
        self.exists: bool | None = None  # None while it is created or deleted
        self.is_active = self.was_deleted = False
        self.losses = 0

    def try_losses(self, call: str, path: str) -> None:
        for loss in LOSSES:
            self.losses += 1
            write_tree(self.disk.surviving(loss), self._after)
            directory = DataDirectory(self._after / "data", 1)
            try:
                self._check(Timelines(directory, HOOKS), directory)
            except Exception as error:
                raise Lost(f"before {call} of {path}, {loss}: {error}") from error
            finally:
                directory.close()
                rmtree(self._after)

    def _check(self, timelines: Timelines, directory: DataDirectory) -> None:
        check(not timelines.damaged, timelines.damaged)
        found = timelines.all()
        check(self.exists is None or bool(found) == self.exists, found)
        check(not found or found[0].control.active >= self.is_active, "is not active any more")
        check(not self.was_deleted or directory.has_tombstone(TIMELINE), "its name is free")


def test_a_timeline_is_created_and_deleted_atomically(folder: Path) -> None:
    world = LossyDataDirectory(folder)
    with world.disk.watching():
        world.exists = False
        world.disk.before = world.try_losses
        directory = DataDirectory(world.path, 1)
        timelines = Timelines(directory, HOOKS)
        world.exists = None
        timelines.create(TIMELINE, SERVER, first_membership(1, 2, 3), START_LSN, TimelineHistory(1))
        world.exists = True
        world.try_losses("the end", "creation")
        timelines.activate(TIMELINE)
        world.is_active = True
        world.try_losses("the end", "activation")
        world.exists, world.is_active = None, False
        timelines.delete(TIMELINE)
        world.exists, world.was_deleted = False, True
        world.try_losses("the end", "deletion")
        directory.close()
        world.disk.check_complete()
    assert world.losses > 100


# ---- the tests are tested


@pytest.mark.parametrize("bug", POWER_LOSS_PLANTS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_caught(folder: Path, bug: Plant) -> None:
    caught = []
    with planted(bug):
        for shape in SHAPES:
            try:
                run(folder, shape, random_losses=0)
            except Lost as error:
                caught.append(f"{shape.__name__}: {error}")
                break
    assert caught, f"no shape shows {bug.__name__}"
