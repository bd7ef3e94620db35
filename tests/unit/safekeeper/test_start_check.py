"""A start with more timelines than it has the time for: who is loaded; all are looked at."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event

import pytest
from new_timeline import SERVER, first_membership
from timeline_on_disk import HOOKS, Pusher, fill, flip
from wal_log import START_LSN, WAL_SEG_SIZE

from consensus.ids import TimelineId
from pgwal.history import TimelineHistory
from safekeeper.data_directory import DataDirectory
from safekeeper.start_check import StartCheck
from safekeeper.status import damage_of
from safekeeper.timeline import Timeline
from safekeeper.timelines import TimelinePolicy, Timelines

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


def test_what_there_is_no_time_for_sleeps_and_is_known(path: Path) -> None:
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
    monkeypatch.setattr("safekeeper.timelines.monotonic", lambda: next(seconds))
    with started(path, 3) as timelines:
        assert [t.control.timeline for t in timelines.awake()] == [NAMES[1], NAMES[3]]


def test_rot_in_the_end_of_one_that_sleeps_is_found_soon(path: Path) -> None:
    with started(path) as timelines:
        rotten = timelines.get(NAMES[2])
        flip(folder_of(rotten), rotten.positions.flush_lsn - 100)
        assert not any(damage_of(timeline) for timeline in timelines.all())
        StartCheck(timelines).run(Event())
        assert [bool(damage_of(t)) for t in timelines.all()] == [n == 2 for n in range(6)]
        assert all(timeline.sleep.is_checked for timeline in timelines.all())


def test_one_that_breaks_the_check_does_not_end_it(
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
