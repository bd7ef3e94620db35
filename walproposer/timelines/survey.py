"""Asks safekeepers for their identity and timelines, all at once. Changes nothing.

The given addresses may be old. `follow` also asks the safekeepers that the greatest reported
membership names, until no greater one is reported (`docs/members.md`). A safekeeper that has left a
timeline reports its members, and has none of its WAL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from quorum_wal.consensus.ids import TimelineId, parse_id
from quorum_wal.consensus.membership import Member as ListedMember
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient

#: Time to wait for the remaining members once a majority has answered: a failover does not wait for
#: one that hangs or is unreachable.
LATE_SECONDS = 1.0
#: Safekeepers asked in all. A safekeeper with many timelines may name many others; each of them
#: needs a thread.
FOLLOWED_MAX = 200


@dataclass(slots=True)
class Member:
    """The answer of a safekeeper; `error` if it did not answer. `damaged` maps the folders of
    timelines that it cannot open to the reasons; only their names are known. `left` are timelines
    that it has left: it knows their members, and has none of their WAL."""

    client: SafekeeperClient
    safekeeper_id: int = 0
    http: str = ""
    timelines: dict[TimelineId, dict[str, Any]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    error: WalProposerError | None = None
    #: 8 bytes in hex that identify its data directory.
    instance: str = ""
    site: str = ""
    left: dict[TimelineId, dict[str, Any]] = field(default_factory=dict)

    @property
    def address(self) -> SafekeeperAddress:
        return self.client.address

    def is_listed_as(self, listed: ListedMember) -> bool:
        """Whether it answered, and is that member. Another disk with its id is another
        safekeeper."""
        if self.error is not None or self.safekeeper_id != listed.id:
            return False
        return not self.instance or listed.is_instance(bytes.fromhex(self.instance))

    def knows(self, timeline: TimelineId) -> dict[str, Any] | None:
        """The status of a timeline that it has or has left."""
        return self.timelines.get(timeline) or self.left.get(timeline)


Wanted = Callable[[TimelineId, Mapping[str, Any]], bool]


def survey(
    addresses: Sequence[SafekeeperAddress], late_seconds: float | None = None
) -> list[Member]:
    """Ask all at once. An unreachable safekeeper is returned with its `error`. With `late_seconds`,
    once a majority has answered and has timelines, it waits only that long for the others. Members
    without timelines are new, or have lost theirs, and then all count."""

    def is_enough(answered: Sequence[Member]) -> bool:
        return sum(bool(member.timelines) for member in answered) > len(addresses) // 2

    return _ask(addresses, late_seconds, is_enough)


def follow(
    members: Sequence[Member], wanted: Wanted, late_seconds: float | None = None
) -> list[Member]:
    """These, and all that the memberships of the wanted timelines name in addition, up to
    FOLLOWED_MAX."""
    followed = list(members)
    while besides := _named_besides(followed, wanted)[: max(0, FOLLOWED_MAX - len(followed))]:

        def is_enough(answered: Sequence[Member]) -> bool:
            return _have_quorums([*followed, *answered], wanted)  # noqa: B023  # called at once

        followed += _ask(besides, late_seconds, is_enough)
    return followed


def any_timeline(timeline: TimelineId, status: Mapping[str, Any]) -> bool:
    """For `Wanted`: all of them."""
    return True


def wanted_of(system_id: int | None, timeline: TimelineId | None) -> Wanted:
    """The timelines of a system, or the named one."""

    def wanted(each: TimelineId, status: Mapping[str, Any]) -> bool:
        if timeline is not None:
            return each == timeline
        return system_id is None or int(status["system_id"]) == system_id

    return wanted


def _ask(
    addresses: Sequence[SafekeeperAddress],
    late_seconds: float | None,
    is_enough: Callable[[Sequence[Member]], bool],
) -> list[Member]:
    answers: SimpleQueue[tuple[int, Member]] = SimpleQueue()
    for number, address in enumerate(addresses):
        # A daemon thread: a late one is not waited for, not even at the end of the process.
        Thread(target=_answer, args=(number, address, answers), daemon=True).start()
    members: dict[int, Member] = {}
    deadline = None
    while len(members) < len(addresses):
        if late_seconds is not None and deadline is None and is_enough([*members.values()]):
            deadline = time.monotonic() + late_seconds
        try:
            number, member = answers.get(
                timeout=None if deadline is None else max(0.0, deadline - time.monotonic())
            )
        except Empty:
            break
        members[number] = member
    return [members.get(n) or _late(a, late_seconds) for n, a in enumerate(addresses)]


def _late(address: SafekeeperAddress, late_seconds: float | None) -> Member:
    error = Unreachable(
        f"safekeeper {address} did not answer within {late_seconds:g} s after a majority"
    )
    return Member(SafekeeperClient(address), error=error)


def _answer(
    number: int, address: SafekeeperAddress, answers: SimpleQueue[tuple[int, Member]]
) -> None:
    member = Member(SafekeeperClient(address))
    try:
        _fill(member)
    except WalProposerError as error:
        member.error = error
    except Exception as error:  # any invalid answer; the caller waits for a result
        member.error = Unreachable(
            f"{address} does not answer like a safekeeper: {type(error).__name__}: {error}",
            hint="Check that it is a safekeeper of this release.",
        )
    answers.put((number, member))


def _fill(member: Member) -> None:
    """Raises WalProposerError, and any exception caused by an invalid answer."""
    with member.client.connected():
        identity, statuses = member.client.identify(), member.client.timelines()
    member.safekeeper_id = int(identity["safekeeper_id"])
    member.http = identity["http"]
    member.instance, member.site = identity["instance"], identity["site"]
    bytes.fromhex(member.instance)
    for status in statuses:
        if "folder" in status:
            member.damaged[str(status["folder"])] = str(status["stopped_reason"])
            continue
        membership_of_page(status["membership"])
        int(status["system_id"])
        known = member.left if status["has_left"] else member.timelines
        known[_timeline_of(status)] = status


def _timeline_of(status: Mapping[str, Any]) -> TimelineId:
    return TimelineId(
        parse_id(status["tenant_id"], "tenant id"), parse_id(status["timeline_id"], "timeline id")
    )


# ---- memberships


def known_timelines(members: Sequence[Member]) -> dict[TimelineId, list[dict[str, Any]]]:
    """All reported timelines, with all statuses of each, including those of safekeepers that have
    left it."""
    known: dict[TimelineId, list[dict[str, Any]]] = {}
    for member in members:
        for timeline, status in (*member.timelines.items(), *member.left.items()):
            known.setdefault(timeline, []).append(status)
    return known


def greatest_membership(statuses: Sequence[Mapping[str, Any]]) -> Membership:
    """The greatest membership in these statuses of a timeline; at least one is required. Raises
    MessageError."""
    memberships = [membership_of_page(status["membership"]) for status in statuses]
    return max(memberships, key=lambda membership: membership.stamp)


def _memberships(members: Sequence[Member], wanted: Wanted) -> list[Membership]:
    return [
        greatest_membership(statuses)
        for timeline, statuses in known_timelines(members).items()
        if wanted(timeline, statuses[0])
    ]


def _named_besides(members: Sequence[Member], wanted: Wanted) -> list[SafekeeperAddress]:
    """The addresses of the wanted timelines' members that have not answered, if they were not asked
    yet."""
    asked = {(member.address.host, member.address.port) for member in members}
    conninfo = members[0].address.conninfo if members else ""
    besides: dict[tuple[str, int], SafekeeperAddress] = {}
    for membership in _memberships(members, wanted):
        for listed in membership.roster:
            place = (listed.host, listed.port)
            if not listed.host or place in asked or any(m.is_listed_as(listed) for m in members):
                continue
            besides[place] = SafekeeperAddress(*place, conninfo)
    return list(besides.values())


def _have_quorums(members: Sequence[Member], wanted: Wanted) -> bool:
    return all(
        has_quorum(membership, answering(members, membership))
        for membership in _memberships(members, wanted)
    )


def answering(members: Sequence[Member], membership: Membership) -> set[int]:
    """The ids of its members that answered."""
    return {
        i for i in membership.all_members
        if any(member.is_listed_as(membership.member(i)) for member in members)
    }  # fmt: skip


def is_known(membership: Membership) -> bool:
    """Whether the addresses of all its members are known."""
    return all(membership.member(each).host for each in membership.all_members)


def may_be_member(member: Member, membership: Membership) -> bool:
    """By its id. A safekeeper that did not answer counts if a member may be at its address."""
    if member.error is None:
        return member.safekeeper_id in membership.all_members
    places = {(listed.host, listed.port) for listed in membership.roster}
    return not is_known(membership) or (member.address.host, member.address.port) in places


def addresses_of(
    membership: Membership, members: Sequence[Member]
) -> tuple[SafekeeperAddress, ...]:
    """The addresses of its members: where they were reached, else where they are listed. Another
    disk with a member's id takes its place, unless the member itself was reached."""
    conninfo = members[0].address.conninfo
    found = answering(members, membership)
    reached = [
        member.address
        for member in members
        if may_be_member(member, membership)
        and (
            member.safekeeper_id not in found
            or member.is_listed_as(membership.member(member.safekeeper_id))
        )
    ]
    named = [
        SafekeeperAddress(listed.host, listed.port, conninfo)
        for listed in membership.roster
        if listed.host and listed.id not in found
    ]
    return tuple(dict.fromkeys((*reached, *named)))


# ---- their timelines


def statuses_of(timeline: TimelineId, members: Sequence[Member]) -> list[dict[str, Any]]:
    """The statuses of the timeline, from the members that have it."""
    return [member.timelines[timeline] for member in members if timeline in member.timelines]


def check_members(members: Sequence[Member]) -> None:
    """Raises Refusal if two addresses lead to the same safekeeper id."""
    seen: dict[int, SafekeeperAddress] = {}
    for member in members:
        if member.error is None and member.safekeeper_id in seen:
            raise Refusal(
                f"safekeepers {seen[member.safekeeper_id]} and {member.address} have the "
                f"same id {member.safekeeper_id}",
                hint="Give every safekeeper its own --id and data directory.",
            )
        seen[member.safekeeper_id] = member.address


def missing_reason(member: Member, timeline: TimelineId) -> str:
    """Why a member does not have the timeline."""
    if member.error is not None:
        return str(member.error)
    name = f"safekeeper {member.safekeeper_id} ({member.address})"
    damage = member.damaged.get(folder_name(timeline))
    return f"{name} is damaged: {damage}" if damage else f"{name} lost its data"


def folder_name(timeline: TimelineId) -> str:
    """The name of a timeline's folder on a safekeeper, by which a damaged timeline is known."""
    return f"{timeline.tenant_id.hex()}.{timeline.timeline_id.hex()}"


class Surveyed(Protocol):
    """The timelines that a safekeeper reported."""

    @property
    def timelines(self) -> Mapping[TimelineId, Mapping[str, Any]]: ...

    @property
    def left(self) -> Mapping[TimelineId, Mapping[str, Any]]: ...


def foreign_folders(surveyed: Iterable[Surveyed], system_id: int) -> set[str]:
    """The folders of timelines that a safekeeper knows to be of another system. If a member cannot
    open one of these, the primaries of this system are not affected."""
    return {
        folder_name(timeline)
        for each in surveyed
        for timeline, status in (*each.timelines.items(), *each.left.items())
        if int(status["system_id"]) != system_id
    }


def damage_of(members: Sequence[Member], system_id: int | None) -> str:
    """The first timeline that a member cannot open and that may be of this system (None: of any);
    "" if there is none."""
    foreign = set[str]() if system_id is None else foreign_folders(members, system_id)
    for member in members:
        for folder, reason in member.damaged.items():
            if folder not in foreign:
                return (
                    f"safekeeper {member.safekeeper_id} ({member.address}) cannot open "
                    f"timeline {folder}: {reason}"
                )
    return ""
