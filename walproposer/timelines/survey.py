"""What safekeepers say of themselves and their timelines, all asked at once. Nothing is changed.

The addresses given may be old ones: `follow` asks those, too, whom the greatest membership that was
told of names, until nothing greater comes (`docs/members.md`). One that has left a timeline leads
on, and has nothing of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Protocol

from consensus.ids import TimelineId, parse_id
from consensus.membership import Member as ListedMember
from consensus.membership import Membership
from consensus.membership_page import membership_of_page
from consensus.quorum import has_quorum
from walproposer.errors import Refusal, Unreachable, WalProposerError
from walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient

#: How long a member may be silent when a majority has answered: a failover does not wait for one
#: that is frozen or cut off.
LATE_SECONDS = 1.0


@dataclass(slots=True)
class Member:
    """What a safekeeper answered; `error` when it did not. `damaged` maps the folders of timelines
    that it cannot open to the reasons: those exist, and nothing but the name is known of them.
    `left` are those that it has left: it knows their members, and has none of their WAL."""

    client: SafekeeperClient
    safekeeper_id: int = 0
    http: str = ""
    timelines: dict[TimelineId, dict[str, Any]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    error: WalProposerError | None = None
    #: 8 bytes in hex: which data directory it is.
    instance: str = ""
    site: str = ""
    left: dict[TimelineId, dict[str, Any]] = field(default_factory=dict)

    @property
    def address(self) -> SafekeeperAddress:
        return self.client.address

    def is_listed_as(self, listed: ListedMember) -> bool:
        """Whether it answered, and is that member; another disk under its id is another one."""
        if self.error is not None or self.safekeeper_id != listed.id:
            return False
        return not self.instance or listed.is_instance(bytes.fromhex(self.instance))

    def knows(self, timeline: TimelineId) -> dict[str, Any] | None:
        """What it says of it, whether it is in it or has left it."""
        return self.timelines.get(timeline) or self.left.get(timeline)


Wanted = Callable[[TimelineId, Mapping[str, Any]], bool]


def survey(
    addresses: Sequence[SafekeeperAddress], late_seconds: float | None = None
) -> list[Member]:
    """Ask all at once; an unreachable one is reported in its `error`. With `late_seconds`, once a
    majority has answered and has timelines, those that are frozen or cut off are waited for no
    longer than that; members that have none are new, or have lost theirs, and all count."""

    def is_enough(answered: Sequence[Member]) -> bool:
        return sum(bool(member.timelines) for member in answered) > len(addresses) // 2

    return _ask(addresses, late_seconds, is_enough)


def follow(
    members: Sequence[Member], wanted: Wanted, late_seconds: float | None = None
) -> list[Member]:
    """These, and whoever the memberships of the wanted timelines name besides."""
    followed = list(members)
    while besides := _named_besides(followed, wanted):

        def is_enough(answered: Sequence[Member]) -> bool:
            return _have_quorums([*followed, *answered], wanted)  # noqa: B023  # called at once

        followed += _ask(besides, late_seconds, is_enough)
    return followed


def any_timeline(timeline: TimelineId, status: Mapping[str, Any]) -> bool:
    """Wanted: all of them."""
    return True


def wanted_of(system_id: int | None, timeline: TimelineId | None) -> Wanted:
    """Those of a system, or the one that was named."""

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
        # A daemon: nobody waits for one that is late, not even at the end of the process.
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
        f"safekeeper {address} did not answer within {late_seconds:g} s after a majority had"
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
    except Exception as error:  # whatever is wrong with the answer, somebody waits for ours
        member.error = Unreachable(
            f"{address} does not answer as a safekeeper does: {type(error).__name__}: {error}",
            hint="Is it another server, or another release?",
        )
    answers.put((number, member))


def _fill(member: Member) -> None:
    """Raises WalProposerError, and whatever comes of an answer that is none."""
    with member.client.connected():
        identity, statuses = member.client.identify(), member.client.timelines()
    member.safekeeper_id = int(identity["safekeeper_id"])
    member.http = identity["http"]
    member.instance, member.site = identity["instance"], identity["site"]
    for status in statuses:
        if "folder" in status:
            member.damaged[status["folder"]] = status["stopped_reason"]
            continue
        membership_of_page(status["membership"])
        known = member.left if status["has_left"] else member.timelines
        known[_timeline_of(status)] = status


def _timeline_of(status: Mapping[str, Any]) -> TimelineId:
    return TimelineId(
        parse_id(status["tenant_id"], "tenant id"), parse_id(status["timeline_id"], "timeline id")
    )


# ---- memberships


def known_timelines(members: Sequence[Member]) -> dict[TimelineId, list[dict[str, Any]]]:
    """All that are told of, with what is said of each, by those that have left, too."""
    known: dict[TimelineId, list[dict[str, Any]]] = {}
    for member in members:
        for timeline, status in (*member.timelines.items(), *member.left.items()):
            known.setdefault(timeline, []).append(status)
    return known


def greatest_membership(statuses: Sequence[Mapping[str, Any]]) -> Membership:
    """Of the memberships in these statuses of a timeline; at least one. Raises MessageError."""
    memberships = [membership_of_page(status["membership"]) for status in statuses]
    return max(memberships, key=lambda membership: membership.stamp)


def _memberships(members: Sequence[Member], wanted: Wanted) -> list[Membership]:
    return [
        greatest_membership(statuses)
        for timeline, statuses in known_timelines(members).items()
        if wanted(timeline, statuses[0])
    ]


def _named_besides(members: Sequence[Member], wanted: Wanted) -> list[SafekeeperAddress]:
    """Of the wanted timelines' members that did not answer yet: where nobody was asked."""
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
    """Whether the addresses of all its members are."""
    return all(membership.member(each).host for each in membership.all_members)


def may_be_member(member: Member, membership: Membership) -> bool:
    """By its id; and who did not answer, where one may live."""
    if member.error is None:
        return member.safekeeper_id in membership.all_members
    places = {(listed.host, listed.port) for listed in membership.roster}
    return not is_known(membership) or (member.address.host, member.address.port) in places


def addresses_of(
    membership: Membership, members: Sequence[Member]
) -> tuple[SafekeeperAddress, ...]:
    """Of its members: where they were reached, else where they are said to be. Another disk under
    a member's id is in its place, unless the member itself was reached."""
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


# ---- what they have


def statuses_of(timeline: TimelineId, members: Sequence[Member]) -> list[dict[str, Any]]:
    """What the members that have it say of it."""
    return [member.timelines[timeline] for member in members if timeline in member.timelines]


def check_members(members: Sequence[Member]) -> None:
    """Raises Refusal when two addresses lead to one safekeeper id."""
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
    """Of a timeline's folder on a safekeeper: by that, one that it cannot open is known."""
    return f"{timeline.tenant_id.hex()}.{timeline.timeline_id.hex()}"


class Surveyed(Protocol):
    """What a safekeeper told of its timelines."""

    @property
    def timelines(self) -> Mapping[TimelineId, Mapping[str, Any]]: ...

    @property
    def left(self) -> Mapping[TimelineId, Mapping[str, Any]]: ...


def foreign_folders(surveyed: Iterable[Surveyed], system_id: int) -> set[str]:
    """The folders of timelines that one of them knows as another system's: where a member cannot
    open such a one, that is nothing to the primaries of this system."""
    return {
        folder_name(timeline)
        for each in surveyed
        for timeline, status in (*each.timelines.items(), *each.left.items())
        if int(status["system_id"]) != system_id
    }


def damage_of(members: Sequence[Member], system_id: int | None) -> str:
    """The first timeline that a member cannot open, and that may be of this system (None: of any);
    "" when there is none."""
    foreign = set[str]() if system_id is None else foreign_folders(members, system_id)
    for member in members:
        for folder, reason in member.damaged.items():
            if folder not in foreign:
                return (
                    f"safekeeper {member.safekeeper_id} ({member.address}) cannot open "
                    f"timeline {folder}: {reason}"
                )
    return ""
