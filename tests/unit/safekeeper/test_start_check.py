"""A start with more timelines than its time allows: which are loaded, and that all are checked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from new_timeline import SERVER, first_membership
from timeline_on_disk import HOOKS, Pusher, fill, flip
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.start_check import StartCheck
from quorum_wal.safekeeper.status import damage_of, timeline_status
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import TimelinePolicy, Timelines
from quorum_wal.safekeeper.wal_removal import remove_old_wal

MEMBERS = first_membership(1, 2, 3)
NAMES = [TimelineId(b"t" * 16, bytes([number]) * 16) for number in range(1, 7)]


@contextmanager
def started(path: Path, start_seconds: float = 0.0) -> Iterator[Timelines]:
    directory = DataDirectory(path, 1)
    timelines = Timelines(directory, HOOKS, TimelinePolicy(start_seconds=start_seconds))
    try:
        yield timelines
    finally:
        timelines.close()
        directory.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A data directory with six timelines, each with a segment and a half that are committed."""
    with started(tmp_path, 60) as timelines:
        for number, name in enumerate(NAMES):
            timelines.create(name, SERVER, MEMBERS, START_LSN, TimelineHistory(1))
            timelines.activate(name)
            pusher = Pusher(timelines.get(name), number).lead()
            fill(pusher.log, 1.5 * WAL_SEG_SIZE)
            pusher.push()
            pusher.push(commit_lsn=pusher.log.lsn)
    return tmp_path


def asleep(timelines: Timelines) -> list[TimelineId]:
    return [t.control.timeline for t in timelines.all() if t.sleep.is_asleep]


def folder_of(timeline: Timeline) -> Path:
    return timeline.directory


def test_timelines_beyond_the_time_sleep_and_are_known(path: Path) -> None:
    with started(path) as timelines:
        assert asleep(timelines) == NAMES
        assert [t.control.timeline for t in timelines.all()] == NAMES
        assert timelines.awake() == []
        assert len({t.positions for t in timelines.all()}) == 1


def test_those_that_were_written_last_are_loaded_first(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash may have left their positions behind, and their proposers come first."""
    for age, name in enumerate([NAMES[3], NAMES[1], NAMES[0], NAMES[2], NAMES[5], NAMES[4]]):
        control = path / "timelines" / f"{name.tenant_id.hex()}.{name.timeline_id.hex()}/control"
        os.utime(control, (1e9 - age, 1e9 - age))
    seconds = iter(range(100))
    monkeypatch.setattr("quorum_wal.safekeeper.timelines.monotonic", lambda: next(seconds))
    with started(path, 3) as timelines:
        assert [t.control.timeline for t in timelines.awake()] == [NAMES[1], NAMES[3]]


def test_damage_at_the_end_of_a_sleeping_log_is_found_soon(path: Path) -> None:
    with started(path) as timelines:
        rotten = timelines.get(NAMES[2])
        flip(folder_of(rotten), rotten.positions.flush_lsn - 100)
        assert not any(damage_of(timeline) for timeline in timelines.all())
        StartCheck(timelines).run(Event())
        assert [bool(damage_of(t)) for t in timelines.all()] == [n == 2 for n in range(6)]
        assert all(timeline.sleep.is_checked for timeline in timelines.all())


DAMAGES: dict[str, Callable[[Path], object]] = {
    "the folder of its WAL is gone": lambda folder: shutil.rmtree(folder / "wal"),
    "a file is where its WAL was": lambda folder: as_file(folder / "wal"),
    "its newest segment is a folder": lambda folder: as_folder(newest(folder)),
    "its newest segment is gone": lambda folder: newest(folder).unlink(),
    "its newest segment is empty": lambda folder: newest(folder).write_bytes(b""),
    "its newest segment is a dead link": lambda folder: as_dead_link(newest(folder)),
    "its control file is gone": lambda folder: (folder / "control").unlink(),
    "its control file is a folder": lambda folder: as_folder(folder / "control"),
    "its control file is empty": lambda folder: (folder / "control").write_bytes(b""),
    "its slots are a folder": lambda folder: as_folder(folder / "slots"),
    "its slots are no slots": lambda folder: (folder / "slots").write_bytes(b"x" * 100),
    "its checksums are a file": lambda folder: as_file(folder / "checksums"),
    "its checksums are none": lambda folder: spoil_all(folder / "checksums"),
    "a file is where damaged segments go": lambda folder: as_file(folder / "damaged"),
    "it is a file": lambda folder: as_file(folder),
    "it is a dead link": lambda folder: as_dead_link(folder),
}


def newest(folder: Path) -> Path:
    return max(path for path in (folder / "wal").iterdir() if len(path.name) == len("0" * 24))


def gone(path: Path) -> Path:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def as_file(path: Path) -> None:
    gone(path).write_bytes(b"not what was here")


def as_folder(path: Path) -> None:
    gone(path).mkdir()


def as_dead_link(path: Path) -> None:
    gone(path).symlink_to("nowhere")


def spoil_all(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.write_bytes(b"not a checksum")


@pytest.mark.parametrize("start_seconds", [0, 60], ids=["asleep", "loaded"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_problem_of_one_timeline_does_not_affect_the_others(
    path: Path, damage: str, start_seconds: float
) -> None:
    """It is reported, the timeline takes part or not, and no work for the others ends."""
    with started(path) as timelines:
        folder = folder_of(timelines.get(NAMES[2]))
    DAMAGES[damage](folder)
    with started(path, start_seconds) as timelines:
        StartCheck(timelines).run(Event())
        others = [timelines.get(name) for name in NAMES if name != NAMES[2]]
        assert len(others) == len(NAMES) - 1
        for timeline in others:
            assert timeline.state is TimelineState.ACTIVE
            assert not damage_of(timeline)
            timeline_status(timeline)
        for timeline in timelines.all():
            timeline_status(timeline)
            timeline.save_positions()
            remove_old_wal(timeline)
        Pusher(others[0], 9).lead(others[0].positions.flush_lsn)
    with started(path, start_seconds) as timelines:
        assert len(timelines.all()) + len(timelines.damaged) == len(NAMES)


def test_a_timeline_that_breaks_the_check_does_not_end_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with started(path) as timelines:
        broken = timelines.get(NAMES[2])

        def wake() -> None:
            raise KeyError("a bug")

        monkeypatch.setattr(broken.sleep, "wake", wake)
        StartCheck(timelines).run(Event())
        assert [t.sleep.is_checked for t in timelines.all()] == [n != 2 for n in range(6)]


def test_it_ends_with_the_process(path: Path) -> None:
    stopping = Event()
    stopping.set()
    with started(path) as timelines:
        StartCheck(timelines).run(stopping)
        assert asleep(timelines) == NAMES


def test_a_timeline_that_was_removed_while_it_slept(path: Path) -> None:
    with started(path) as timelines:
        timelines.delete(NAMES[0])
        StartCheck(timelines).run(Event())
        assert len(timelines.all()) == 5
    with started(path) as timelines:
        assert asleep(timelines) == NAMES[1:]
