"""A lock of numbered objects: one holder at a time, by each waiter's own clock."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from quorum_wal.objectstore.local import LocalStore
from quorum_wal.walproposer.locks.object_lock import FOLDER, ObjectLock

LEASE_SECONDS = 10.0


class World:
    """Proposers with separate clocks, which have different times."""

    def __init__(self, folder: Path) -> None:
        self.store = LocalStore(str(folder))
        self.seconds = 0.0

    def lock(self, clock_offset: float = 0.0) -> ObjectLock:
        return ObjectLock(self.store, LEASE_SECONDS, lambda: self.seconds + clock_offset)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_one_holds_and_the_other_waits_a_whole_lease(world: World) -> None:
    first, second = world.lock(), world.lock(clock_offset=-1e6)
    assert first.acquire("first")
    assert not second.acquire("second")
    assert second.holder == "first"
    world.seconds += LEASE_SECONDS - 1
    assert first.renew()
    world.seconds += 2
    assert not second.acquire("second")  # renewed: the wait begins again
    world.seconds += LEASE_SECONDS
    assert second.acquire("second")
    assert not first.renew()
    assert second.renew()


def test_what_is_given_back_is_free_at_once(world: World) -> None:
    first, second = world.lock(), world.lock()
    assert first.acquire("first")
    first.release()
    assert second.acquire("second")
    assert not first.acquire("first")


def test_a_very_late_proposer_does_not_hold(world: World) -> None:
    """It saw the last number, stalled, and creates one that was deleted long ago."""
    late, other = world.lock(), world.lock()
    assert late.acquire("late")
    world.seconds += LEASE_SECONDS
    assert not other.acquire("other")
    world.seconds += LEASE_SECONDS
    assert other.acquire("other")
    for _ in range(5):
        assert other.renew()
    assert not late.renew()
    assert other.renew()
    assert len(list(world.store.list(FOLDER))) <= 4  # however often it was renewed


def test_of_many_at_once_one_gets_it(world: World) -> None:
    locks = [world.lock() for _ in range(8)]
    with ThreadPoolExecutor(len(locks)) as pool:
        got = list(pool.map(lambda pair: pair[1].acquire(str(pair[0])), enumerate(locks)))
    assert got.count(True) == 1


def test_an_unreadable_number_must_grow_old_too(world: World) -> None:
    assert world.lock().acquire("first")
    (info,) = world.store.list(FOLDER)
    world.store.put(info.key, b"rubbish")
    second = world.lock()
    assert not second.acquire("second")
    world.seconds += LEASE_SECONDS
    assert second.acquire("second")
