"""Which timeline a client gets: the one it names, or the only one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from new_timeline import SERVER, TIMELINE, first_membership
from timeline_on_disk import HOOKS
from wal_log import START_LSN

from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.data_directory import DataDirectory
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.replication_server import select_timeline
from quorum_wal.safekeeper.timelines import Timelines

OF_NO_TENANT = TimelineId(bytes(16), b"t" * 16)


@pytest.fixture
def timelines(tmp_path: Path) -> Iterator[Timelines]:
    directory = DataDirectory(tmp_path, 1)
    made = Timelines(directory, HOOKS)
    yield made
    made.close()
    directory.close()


def create(timelines: Timelines, timeline: TimelineId) -> None:
    timelines.create(timeline, SERVER, first_membership(1), START_LSN, TimelineHistory(1))


def test_the_only_one_needs_no_name(timelines: Timelines) -> None:
    with pytest.raises(SafekeeperError, match="this safekeeper has 0 timelines"):
        select_timeline(timelines, {})
    create(timelines, TIMELINE)
    assert select_timeline(timelines, {}).control.timeline == TIMELINE
    create(timelines, OF_NO_TENANT)
    with pytest.raises(SafekeeperError, match="this safekeeper has 2 timelines") as error:
        select_timeline(timelines, {})
    assert error.value.sqlstate == "22023"


def test_a_timeline_is_named_with_its_tenant_or_has_none(timelines: Timelines) -> None:
    create(timelines, TIMELINE)
    create(timelines, OF_NO_TENANT)
    named = {"timeline_id": TIMELINE.timeline_id.hex(), "tenant_id": TIMELINE.tenant_id.hex()}
    assert select_timeline(timelines, named).control.timeline == TIMELINE
    lone = {"timeline_id": OF_NO_TENANT.timeline_id.hex()}
    assert select_timeline(timelines, lone).control.timeline == OF_NO_TENANT
    with pytest.raises(SafekeeperError, match="no such timeline"):
        select_timeline(timelines, {"timeline_id": TIMELINE.timeline_id.hex()})
    with pytest.raises(ConsensusError):
        select_timeline(timelines, {"timeline_id": "nonsense"})


def test_a_lone_tenant_means_its_only_timeline(timelines: Timelines) -> None:
    """And never a timeline of another tenant."""
    create(timelines, TIMELINE)
    tenant = {"tenant_id": TIMELINE.tenant_id.hex()}
    assert select_timeline(timelines, tenant).control.timeline == TIMELINE
    with pytest.raises(SafekeeperError, match="this tenant has 0 timelines"):
        select_timeline(timelines, {"tenant_id": "7" * 32})
    create(timelines, OF_NO_TENANT)
    assert select_timeline(timelines, tenant).control.timeline == TIMELINE


def test_a_timeline_that_was_left_is_selected_only_without_another(timelines: Timelines) -> None:
    """Its consumers are sent to other members; those of another timeline are not concerned."""
    create(timelines, TIMELINE)
    timelines.activate(TIMELINE)
    timelines.leave(TIMELINE, Membership(Stamp(NodeId(1, b"a" * 16), 2), (2, 3)))
    assert select_timeline(timelines, {}).control.has_left
    server = replace(SERVER, system_id=SERVER.system_id + 1)
    timelines.create(OF_NO_TENANT, server, first_membership(1), START_LSN, TimelineHistory(1))
    assert select_timeline(timelines, {}).control.timeline == OF_NO_TENANT
