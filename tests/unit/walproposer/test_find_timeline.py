"""Which timelines of the safekeepers count, their members, and the members' addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import Member as ListedMember
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.membership_page import membership_page
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from quorum_wal.walproposer.timelines import discovery, survey
from quorum_wal.walproposer.timelines.survey import Member, follow, wanted_of
from quorum_wal.walproposer.timelines.timeline_creation import find_timeline

TIMELINE = TimelineId(bytes(16), b"timeline".ljust(16, b"\0"))
UNKNOWN = Membership(Stamp.FIRST, (1, 2, 3))


def listed(number: int, *, port: int = 0, disk: int = 1) -> ListedMember:
    return ListedMember(number, bytes([disk] * 8), "127.0.0.1", port or 5454 + number)


def membership_of(*members: ListedMember, generation: int = 1) -> Membership:
    author = NodeId(generation, b"author".ljust(16, b"\0"))
    return Membership(Stamp(author, generation), tuple(m.id for m in members), (), members)


BEFORE = membership_of(listed(1), listed(2), listed(3))
#: 4 came for 1, and 3 moved.
NOW = membership_of(listed(2), listed(3, port=9003), listed(4), generation=3)


def status_of(
    membership: Membership, *, active: bool = True, state: str = "active"
) -> dict[str, Any]:
    return {
        "tenant_id": TIMELINE.tenant_id.hex(),
        "timeline_id": TIMELINE.timeline_id.hex(),
        "system_id": "7",
        "pg_version": 150018,
        "wal_seg_size": 16 << 20,
        "membership": membership_page(membership),
        "active": active,
        "state": state,
        "has_left": False,
    }


def member(
    number: int, membership: Membership = UNKNOWN, *, port: int = 0, disk: int = 1, **status: Any
) -> Member:
    client = SafekeeperClient(SafekeeperAddress("127.0.0.1", port or 5454 + number))
    known = {TIMELINE: status_of(membership, **status)}
    return Member(client, number, timelines=known, instance=bytes([disk] * 8).hex())


def left(number: int, membership: Membership) -> Member:
    here = member(number, membership)
    return replace(here, timelines={}, left=here.timelines)


def silent(port: int) -> Member:
    client = SafekeeperClient(SafekeeperAddress("127.0.0.1", port))
    return Member(client, error=Unreachable(f"{port} is silent"))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """`world(*members)`: the members that answer, by address; other addresses do not answer."""

    def make(*members: Member) -> None:
        by_port = {each.address.port: each for each in members}

        def ask(
            addresses: Sequence[SafekeeperAddress], late_seconds: object, is_enough: object
        ) -> list[Member]:
            return [by_port.get(address.port) or silent(address.port) for address in addresses]

        monkeypatch.setattr(survey, "_ask", ask)

    return make


def ports(addresses: Sequence[SafekeeperAddress]) -> list[int]:
    return [address.port for address in addresses]


def test_a_stopped_timeline_whose_creation_never_finished_is_not_there() -> None:
    """Otherwise the others would be activated, and a member without it be taken for one that
    forgot."""
    members = [member(1, active=False, state="stopped"), member(2, active=False, state="creating")]
    assert find_timeline(members, 7, None) is None


def test_a_stopped_timeline_that_was_active_is_there() -> None:
    members = [member(i, active=True, state="stopped" if i == 1 else "active") for i in (1, 2, 3)]
    found = find_timeline(members, 7, None)
    assert found is not None
    assert found.timeline == TIMELINE
    assert ports(found.addresses) == [5455, 5456, 5457]


def test_without_known_addresses_exactly_the_members_must_be_given() -> None:
    with pytest.raises(Refusal, match="2 safekeepers given, but the timeline's members are"):
        find_timeline([member(1), member(2)], 7, None)
    with pytest.raises(Refusal, match=r"safekeeper 4 \(127.0.0.1:5458\) is not a member"):
        find_timeline([member(1), member(2), member(4)], 7, None)


@pytest.mark.parametrize("given", [5455, 5456, 9003, 5458])
def test_any_address_that_was_ever_one_leads_to_the_present_members(
    world: Callable[..., None], given: int
) -> None:
    """1 has left and knows it; the others report the members; 3's old address is unused."""
    world(
        left(1, NOW), member(2, NOW), member(3, NOW, port=9003), member(4, NOW),
    )  # fmt: skip
    members = survey.survey([SafekeeperAddress("127.0.0.1", given)])
    members = follow(members, wanted_of(7, None))
    found = find_timeline(members, 7, None)
    assert found is not None
    assert found.membership == NOW
    assert sorted(ports(found.addresses)) == [5456, 5458, 9003]


def test_an_older_membership_leads_to_a_newer_one(world: Callable[..., None]) -> None:
    """3 was disconnected, and knows nothing; 2 knows its address, and that of 4."""
    world(member(2, NOW), member(3, BEFORE), member(4, NOW))
    given = [SafekeeperAddress("127.0.0.1", 5457)]
    assert sorted(ports(discovery.present_addresses(given))) == [5456, 5457, 5458]
    assert sorted(ports(discovery.present_addresses(given, TIMELINE))) == [5456, 5457, 5458]


def test_another_disk_under_a_members_id_lost_the_data(world: Callable[..., None]) -> None:
    """It does not count, whatever it has (condition A1)."""
    world(member(2, NOW), member(4, NOW, disk=2))
    members = follow(
        survey.survey([SafekeeperAddress("127.0.0.1", 5456)]), wanted_of(None, TIMELINE)
    )
    with pytest.raises(Unreachable) as caught:
        find_timeline(members, 7, None)
    assert "only 1 of 3 safekeepers can take part" in str(caught.value)
    assert "safekeeper 4 (127.0.0.1:5458) lost its data" in str(caught.value)
    assert "9003 is silent" in str(caught.value)


def test_a_quorum_of_each_set_must_answer(world: Callable[..., None]) -> None:
    joint = BEFORE.joint_with(NOW.stamp, (listed(4), listed(5), listed(6)))
    world(member(1, joint), member(2, joint), member(3, joint), member(4, joint))
    members = follow([member(1, joint)], wanted_of(None, None))
    with pytest.raises(Unreachable, match="only 4 of 6 safekeepers can take part"):
        find_timeline(members, 7, None)


def test_members_of_other_timelines_are_not_asked(world: Callable[..., None]) -> None:
    world(member(1, NOW))
    members = survey.survey([SafekeeperAddress("127.0.0.1", 5455)])
    assert follow(members, wanted_of(8, None)) == members


def test_without_addresses_nothing_is_asked() -> None:
    assert survey.survey([]) == []
    assert follow([], wanted_of(None, None)) == []
    assert discovery.discover([]).safekeepers == ()
