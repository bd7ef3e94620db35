"""Which timelines of the safekeepers count as there."""

from __future__ import annotations

from typing import Any

from consensus.ids import TimelineId
from walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from walproposer.timelines.timeline_creation import Member, find_timeline

TIMELINE = TimelineId(bytes(16), b"timeline".ljust(16, b"\0"))


def member(number: int, *, active: bool, state: str) -> Member:
    status: dict[str, Any] = {
        "system_id": "7",
        "pg_version": 150018,
        "wal_seg_size": 16 << 20,
        "membership": {"generation": 1, "members": [1, 2, 3], "new_members": []},
        "active": active,
        "state": state,
    }
    client = SafekeeperClient(SafekeeperAddress("127.0.0.1", 5454 + number))
    return Member(client, number, timelines={TIMELINE: status})


def test_a_stopped_timeline_whose_creation_never_finished_is_not_there() -> None:
    """Else the others would be activated, and a member without it taken for one that forgot."""
    members = [member(1, active=False, state="stopped"), member(2, active=False, state="creating")]
    assert find_timeline(members, 7, None) is None


def test_a_stopped_timeline_that_was_active_is_there() -> None:
    members = [member(i, active=True, state="stopped" if i == 1 else "active") for i in (1, 2, 3)]
    found = find_timeline(members, 7, None)
    assert found is not None
    assert found.timeline == TIMELINE
