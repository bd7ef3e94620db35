"""Workers of the archive: every archiver gets its turn, and a hanging one does not delay others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor
from threading import Event, Thread

import pytest

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.safekeeper.archive_workers import ArchiveWorkers

TIMEOUT = 30.0


class Turns:
    """An archiver with work for so many turns; its turns wait for `gate`."""

    def __init__(self, name: str, turns: int, done: list[str]) -> None:
        self.name = name
        self.left = turns
        self.gate = Event()
        self.gate.set()
        self.is_at_work = False
        self._done = done

    def take_turn(self, pool: Executor) -> bool:
        assert not self.is_at_work, "by one thread at a time"
        self.is_at_work = True
        assert self.gate.wait(TIMEOUT)
        self._done.append(self.name)
        self.left -= 1
        self.is_at_work = False
        return self.left > 0


class Clock:
    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def done() -> list[str]:
    return []


@pytest.fixture
def workers(clock: Clock) -> Iterator[ArchiveWorkers]:
    made = ArchiveWorkers(2, slow_seconds=10, clock=clock)
    yield made
    made.close(TIMEOUT)


def hanging(workers: ArchiveWorkers, count: int, done: list[str]) -> list[Turns]:
    """So many archivers whose turns do not end."""
    found = [Turns(f"hangs {number}", 1, done) for number in range(count)]
    for archivist in found:
        archivist.gate.clear()
        workers.offer(archivist)
    return found


def archive_threads() -> set[Thread]:
    """Threads of other tests may still be ending."""
    return {thread for thread in threading.enumerate() if thread.name == "archive"}


def test_a_long_backlog_takes_its_turns_with_the_others(
    workers: ArchiveWorkers, done: list[str]
) -> None:
    long, short = Turns("long", 50, done), [Turns(f"{n}", 1, done) for n in range(5)]
    long.gate.clear()
    for archivist in (long, *short):
        workers.offer(archivist)
    long.gate.set()
    wait_until(lambda: len(done) == 55, TIMEOUT, "all turns")
    assert max(done.index(a.name) for a in short) < 20


def test_no_archiver_has_two_turns_at_once(workers: ArchiveWorkers, done: list[str]) -> None:
    archivist = Turns("a", 20, done)
    offering = [
        Thread(target=lambda: [workers.offer(archivist) for _ in range(200)]) for _ in range(4)
    ]
    for thread in offering:
        thread.start()
    for thread in offering:
        thread.join(TIMEOUT)
    wait_until(lambda: not workers.is_busy_with(archivist), TIMEOUT, "the last turn")
    assert len(done) >= 20


def test_hanging_workers_are_replaced_up_to_a_limit(
    workers: ArchiveWorkers, clock: Clock, done: list[str]
) -> None:
    stuck = hanging(workers, 2, done)
    wait_until(lambda: all(a.is_at_work for a in stuck), TIMEOUT, "both to hang")
    other = Turns("other", 3, done)
    workers.offer(other)
    workers.replace_hanging()
    assert done == [], "they may still end in time"
    clock.seconds += 11
    assert workers.slow_count == 2
    workers.replace_hanging()
    wait_until(lambda: done == ["other"] * 3, TIMEOUT, "the other one's turns")
    more = hanging(workers, 3, done)
    wait_until(lambda: sum(a.is_at_work for a in more) == 2, TIMEOUT, "two more to hang")
    clock.seconds += 11
    workers.replace_hanging()
    assert sum(a.is_at_work for a in more) == 2, "twice as many are all there are"
    for archivist in (*stuck, *more):
        archivist.gate.set()
    wait_until(lambda: len(done) == 3 + 5, TIMEOUT, "all to go on")


def test_the_number_of_threads_is_bounded_and_falls_again(
    workers: ArchiveWorkers, clock: Clock, done: list[str]
) -> None:
    before = archive_threads()
    archivists = hanging(workers, 40, done)

    def at_work_later() -> int:
        clock.seconds += 11
        workers.replace_hanging()
        return sum(archivist.is_at_work for archivist in archivists)

    wait_until(lambda: at_work_later() == 4, TIMEOUT, "four at work")
    assert max(at_work_later() for _ in range(10)) == 4
    assert len(archive_threads() - before) == 4
    for archivist in archivists:
        archivist.gate.set()
    wait_until(lambda: len(done) == 40, TIMEOUT, "all turns")
    wait_until(lambda: len(archive_threads() - before) <= 2, TIMEOUT, "those who stood in to go")


def test_close_does_not_wait_for_hanging_turns(clock: Clock, done: list[str]) -> None:
    workers = ArchiveWorkers(1, clock=clock)
    (stuck,) = hanging(workers, 1, done)
    wait_until(lambda: stuck.is_at_work, TIMEOUT, "it to hang")
    workers.close(0.05)
    assert stuck.is_at_work
    stuck.gate.set()


def test_after_close_no_thread_is_started_for_those_that_wait(
    clock: Clock, done: list[str]
) -> None:
    workers = ArchiveWorkers(1, clock=clock)
    before = archive_threads()
    archivists = hanging(workers, 5, done)
    wait_until(lambda: any(a.is_at_work for a in archivists), TIMEOUT, "one to hang")
    workers.close(0.05)
    for archivist in archivists:
        archivist.gate.set()
    wait_until(lambda: not archive_threads() - before, TIMEOUT, "the thread to end")
    workers.offer(Turns("late", 1, done))
    assert not archive_threads() - before
    assert len(done) == 1
