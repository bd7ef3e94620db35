"""Limits of a tenant: it gets an error when it reaches one, and no other tenant is affected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from new_timeline import SERVER, first_membership
from timeline_on_disk import HOOKS, Pusher, fill
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.access.roles import Role
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwire.errors import ConnectionRefused
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.errors import TimelineError
from quorum_wal.safekeeper.tenant_limits import TenantConnections, TenantLimits, tenant_of
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.safekeeper.timelines import TimelinePolicy, Timelines
from quorum_wal.storage.errors import StorageError

ONE, OTHER = b"1" * 16, b"2" * 16
LIMITS = TenantLimits(timelines_max=2, connections_max=2, wal_bytes_max=4 * WAL_SEG_SIZE)
PROPOSER, REPLICA = frozenset({Role.PROPOSER}), frozenset({Role.REPLICA})


@pytest.fixture
def timelines(tmp_path: Path) -> Iterator[Timelines]:
    directory = DataDirectory(tmp_path, 1)
    made = Timelines(directory, HOOKS, TimelinePolicy(tenant_limits=LIMITS))
    yield made
    made.close()
    directory.close()


def create(timelines: Timelines, tenant_id: bytes, number: int) -> Timeline:
    name = TimelineId(tenant_id, bytes([number]) * 16)
    timelines.create(name, SERVER, first_membership(1), START_LSN, TimelineHistory(1))
    timelines.activate(name)
    return timelines.get(name)


def state_of(timeline: Timeline) -> TimelineState:
    return timeline.state


# ---- timelines


def test_one_timeline_too_many_is_refused(timelines: Timelines) -> None:
    for number in (1, 2):
        create(timelines, ONE, number)
    with pytest.raises(TimelineError, match="has 2 timelines here, its limit is 2") as caught:
        create(timelines, ONE, 3)
    assert caught.value.sqlstate == "53400"
    assert "--tenant-timelines-max" in caught.value.hint
    create(timelines, OTHER, 3)
    create(timelines, ONE, 2)  # again, as after an answer that was lost
    timelines.delete(TimelineId(ONE, bytes([1]) * 16))
    create(timelines, ONE, 3)


# ---- WAL


def test_a_full_quota_stops_the_timeline_that_would_grow(timelines: Timelines) -> None:
    first, second = (Pusher(create(timelines, ONE, number), number).lead() for number in (1, 2))
    other = Pusher(create(timelines, OTHER, 3), 3).lead()
    fill(first.log, 2.5 * WAL_SEG_SIZE)
    first.push()
    fill(second.log, 0.5 * WAL_SEG_SIZE)
    second.push()
    fill(second.log, 1.5 * WAL_SEG_SIZE)
    with pytest.raises(StorageError, match="bytes of WAL here, its limit is 4194304") as caught:
        second.push()
    assert caught.value.sqlstate == "53100"
    assert "--tenant-wal-max" in caught.value.hint
    assert second.timeline.state is TimelineState.STOPPED
    assert first.timeline.state is TimelineState.ACTIVE
    first.log.append("R")
    assert first.push().flush_lsn == first.log.lsn, "it has room in its segment"
    fill(other.log, 3.5 * WAL_SEG_SIZE)
    assert other.push().flush_lsn == other.log.lsn


def test_it_resumes_when_there_is_room_again(timelines: Timelines) -> None:
    first, second = (Pusher(create(timelines, ONE, number), number).lead() for number in (1, 2))
    fill(first.log, 3.5 * WAL_SEG_SIZE)
    first.push()
    fill(second.log, 0.5 * WAL_SEG_SIZE)
    with pytest.raises(StorageError):
        second.push()
    second.timeline.maybe_resume(1 << 50)
    assert second.timeline.state is TimelineState.STOPPED
    timelines.delete(first.timeline.control.timeline)
    second.timeline.maybe_resume(1 << 50)
    assert state_of(second.timeline) is TimelineState.ACTIVE


def test_the_wal_of_sleeping_timelines_counts(timelines: Timelines) -> None:
    first, second = (Pusher(create(timelines, ONE, number), number).lead() for number in (1, 2))
    fill(first.log, 3.5 * WAL_SEG_SIZE)
    first.push()
    first.timeline.disconnect(first)
    first.timeline.sleep.maybe_begin(0)
    assert first.timeline.sleep.is_asleep
    fill(second.log, 0.5 * WAL_SEG_SIZE)
    with pytest.raises(StorageError, match="its limit is"):
        second.push()


def test_another_timelines_unreadable_folder_stops_no_other(timelines: Timelines) -> None:
    """Its last known size counts; a deletion that runs meanwhile looks the same."""
    first, second = (Pusher(create(timelines, ONE, number), number).lead() for number in (1, 2))
    fill(first.log, 1.5 * WAL_SEG_SIZE)
    first.push()
    assert first.timeline.sleep.wal_bytes == 2 * WAL_SEG_SIZE
    (first.timeline.directory / "wal").rename(first.timeline.directory / "gone")
    assert first.timeline.sleep.wal_bytes == 2 * WAL_SEG_SIZE
    fill(second.log, 1.5 * WAL_SEG_SIZE)
    assert second.push().flush_lsn == second.log.lsn
    fill(second.log, 2.5 * WAL_SEG_SIZE)
    with pytest.raises(StorageError, match="bytes of WAL here, its limit is"):
        second.push()
    (first.timeline.directory / "gone").rename(first.timeline.directory / "wal")


# ---- connections


def test_one_connection_too_many_is_refused_until_another_leaves() -> None:
    connections = TenantConnections(LIMITS)
    of_one, of_other = {"tenant_id": ONE.hex()}, {"tenant_id": OTHER.hex()}
    for number in (1, 2):
        connections.enter(number, of_one, REPLICA)
    with pytest.raises(ConnectionRefused, match=f"for tenant {ONE.hex()}") as caught:
        connections.enter(3, of_one, REPLICA)
    assert caught.value.sqlstate == "53300"
    assert "--tenant-connections-max" in str(caught.value.hint)
    connections.leave(3)
    connections.enter(4, of_other, REPLICA)
    connections.leave(1)
    connections.enter(5, of_one, REPLICA)


def test_many_readers_do_not_keep_the_proposer_out() -> None:
    connections = TenantConnections(LIMITS)
    for number in (1, 2):
        connections.enter(number, {"tenant_id": ONE.hex()}, REPLICA)
    for number in (3, 4):
        connections.enter(number, {"tenant_id": ONE.hex()}, PROPOSER)
    with pytest.raises(ConnectionRefused):
        connections.enter(5, {"tenant_id": ONE.hex()}, PROPOSER)


def test_the_tenant_of_a_connection() -> None:
    assert tenant_of({"tenant_id": ONE.hex(), "timeline_id": "0" * 32}) == ONE
    assert tenant_of({"timeline_id": "1" * 32}) == bytes(16)
    assert tenant_of({"user": "monitor"}) is None


def test_without_limits_connections_are_not_counted() -> None:
    connections = TenantConnections(TenantLimits())
    for number in range(1000):
        connections.enter(number, {"tenant_id": ONE.hex()}, REPLICA)
