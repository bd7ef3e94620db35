"""Whether a primary may get a new timeline on safekeepers that show none of it: each check, and
that without it a second log would be created, whose commits the first quorum would never see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import Member as ListedMember
from quorum_wal.consensus.membership import Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.primary.log_marker import marker_name
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines import primary_log, timeline_creation
from quorum_wal.walproposer.timelines.primary_log import PrimaryLog
from quorum_wal.walproposer.timelines.survey import Member, folder_name
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline, create_timeline

SERVER = ServerFacts(7, 150018, 1 << 20)
ITS_LOG = TimelineId(bytes(16), b"a" * 16)


class Safekeeper:
    """Empty, as far as it reports; it follows orders."""

    def __init__(self, number: int) -> None:
        self.address = SafekeeperAddress("127.0.0.1", number)
        self.commands: list[str] = []
        self.membership = ""

    def command(self, name: str, options: dict[str, str]) -> list[dict[str, str]]:
        self.commands.append(name)
        self.membership = options.get("membership", self.membership)
        return []


def empty_members(**of_the_first: Any) -> list[Member]:
    clients: list[Any] = [Safekeeper(number) for number in (1, 2, 3)]
    first, *others = (
        Member(client, id, instance=bytes([id] * 8).hex(), site=f"site {id}")
        for id, client in enumerate(clients, 1)
    )
    for name, value in of_the_first.items():
        setattr(first, name, value)
    return [first, *others]


def attach(log: PrimaryLog, members: Sequence[Member]) -> FoundTimeline:
    """A proposer that has found no timeline of its primary."""
    log.check(None, members)
    return create_timeline(members, Primary(SERVER, TimelineHistory(1), 1 << 24, 1 << 24), None)


def log_of(*markers: str, commits_wait: bool = False) -> PrimaryLog:
    return PrimaryLog(SERVER, markers, -8, 10, commits_wait)


MARKED = log_of(marker_name(ITS_LOG))
UNMARKED = log_of()
LEFT = {ITS_LOG: {"system_id": str(SERVER.system_id)}}
DAMAGED = {folder_name(ITS_LOG): "control file is damaged"}


def known_members(system_id: int) -> list[Member]:
    """The first cannot open a timeline that the others have, of that system; not begun yet."""
    members = empty_members(damaged=DAMAGED)
    for member in members[1:]:
        member.timelines = {ITS_LOG: {"system_id": str(system_id), "active": True}}
    return members


def test_a_timeline_of_another_system_prevents_nothing() -> None:
    """A damaged control file of one tenant is no reason to refuse all others."""
    members = known_members(SERVER.system_id + 1)
    assert attach(UNMARKED, members).server == SERVER


def test_a_primary_of_no_log_gets_one() -> None:
    members = empty_members()
    assert attach(UNMARKED, members).server == SERVER
    told: list[Any] = [member.client for member in members]
    assert [client.commands for client in told] == [["CREATE_TIMELINE", "ACTIVATE_TIMELINE"]] * 3


def test_its_membership_has_the_members_and_their_addresses() -> None:
    members = empty_members()
    found = attach(UNMARKED, members)
    told: list[Any] = [member.client for member in members]
    assert {client.membership for client in told} == {encode_membership(found.membership).hex()}
    assert found.membership.stamp == Stamp.FIRST
    assert found.membership.roster == tuple(
        ListedMember(id, bytes([id] * 8), "127.0.0.1", id, f"site {id}") for id in (1, 2, 3)
    )
    assert found.addresses == tuple(member.address for member in members)


@pytest.mark.parametrize(
    ("log", "members", "error", "text"),
    [
        (MARKED, empty_members(), Refusal, "the primary belongs to log "),
        (
            MARKED,
            empty_members(error=Unreachable("silent")),
            Unreachable,
            "could be asked .*silent",
        ),
        (log_of(commits_wait=True), empty_members(), Refusal, "commits of the primary wait for"),
        (UNMARKED, empty_members(damaged=DAMAGED), Refusal, "no timeline is created: safekeeper 1"),
        (UNMARKED, known_members(SERVER.system_id), Refusal, "cannot open timeline"),
        (UNMARKED, empty_members(left=LEFT), Refusal, "has left timeline .* continues without it"),
    ],
    ids=[
        "marked",
        "marked, one is silent",
        "commits wait",
        "a damaged folder",
        "a damaged folder that others know as its own",
        "one has left",
    ],
)
def test_it_gets_no_second_one(
    log: PrimaryLog, members: list[Member], error: type[WalProposerError], text: str
) -> None:
    with pytest.raises(error, match=text):
        attach(log, members)
    told: list[Any] = [member.client for member in members]
    assert [client.commands for client in told] == [[], [], []]


@pytest.mark.parametrize(
    ("module", "name", "nothing", "log", "members"),
    [
        (primary_log, "new_log_problem", ("", ""), MARKED, empty_members()),
        (timeline_creation, "damage_of", "", UNMARKED, empty_members(damaged=DAMAGED)),
        (timeline_creation, "_check_nothing_left", None, UNMARKED, empty_members(left=LEFT)),
    ],
    ids=["the marker is not looked at", "a damaged folder is nothing", "who left is nobody"],
)
def test_a_planted_bug_is_seen(
    module: Any,
    name: str,
    nothing: object,
    log: PrimaryLog,
    members: list[Member],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only that check prevents a second log for the primary."""
    monkeypatch.setattr(module, name, lambda *_: nothing)
    assert attach(log, members).timeline != ITS_LOG
