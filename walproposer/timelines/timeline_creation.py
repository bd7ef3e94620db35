"""Finds a timeline and its members on the safekeepers, or creates it on all of them.

A creation has two steps, and only a timeline whose creation is finished ever votes:

    1. CREATE_TIMELINE on every member       (all must be reachable)
    2. ACTIVATE_TIMELINE on every member     (only when all of them have it)

So once one member is active, a member without the timeline has lost its data. It has forgotten its
promises, and must never be given the timeline again (the law, "Amnesia").
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import Member as ListedMember
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.survey import (
    LATE_SECONDS,
    Member,
    addresses_of,
    check_members,
    damage_of,
    follow,
    greatest_membership,
    is_known,
    may_be_member,
    missing_reason,
    statuses_of,
    survey,
    wanted_of,
)

DAMAGE_HINT = (
    "It exists, and may hold acknowledged commits: repair it. If it is not needed any more, delete "
    "it with sk timeline delete."
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class FoundTimeline:
    """`addresses` are the current addresses of its members, as far as they are known."""

    timeline: TimelineId
    server: ServerFacts
    membership: Membership
    addresses: tuple[SafekeeperAddress, ...] = ()

    def check_server(self, theirs: ServerFacts) -> None:
        """Check whether a server can be this timeline's primary. Raises Refusal."""
        ours = self.server
        if ours.system_id != theirs.system_id:
            raise Refusal(
                f"the primary has system identifier {theirs.system_id}, "
                f"the timeline belongs to {ours.system_id}",
                hint="Attach the primary that this timeline was created for, or name another "
                "--timeline.",
            )
        if ours.pg_major != theirs.pg_major or ours.wal_seg_size != theirs.wal_seg_size:
            raise Refusal(
                f"the primary is Postgres {theirs.pg_major} with {theirs.wal_seg_size} byte "
                f"segments, the timeline was created for {ours.pg_major} with {ours.wal_seg_size}",
                hint="A major upgrade needs a new timeline.",
            )


def find_timeline(
    members: Sequence[Member], system_id: int | None, wanted: TimelineId | None
) -> FoundTimeline | None:
    """The finished timeline of this system on these safekeepers; None if there is none.

    Raises Refusal if there are several, Unreachable if fewer than a quorum of its members answer.
    """
    is_wanted = wanted_of(system_id, wanted)
    statuses: dict[TimelineId, list[dict[str, Any]]] = {}
    for member in members:
        for timeline, status in (*member.timelines.items(), *member.left.items()):
            if is_wanted(timeline, status) and (status["active"] or timeline in member.left):
                statuses.setdefault(timeline, []).append(status)
    if len(statuses) > 1:
        names = ", ".join(sorted(map(str, statuses)))
        raise Refusal(
            f"the safekeepers have {len(statuses)} timelines of this primary: {names}",
            hint="Name one with --timeline TENANT/TIMELINE.",
        )
    if not statuses:
        return None
    ((timeline, found),) = statuses.items()
    result = _found(timeline, found, members)
    _finish_activation(members, timeline)
    _check_quorum(members, result)
    return result


def require_timeline(
    addresses: Sequence[SafekeeperAddress], system_id: int | None, wanted: TimelineId | None
) -> tuple[list[Member], FoundTimeline]:
    """The members of an existing timeline, and the timeline; `system_id` None is any system.

    Raises the errors of `check_members` and `find_timeline`, Refusal if there is none, and the
    error of the first safekeeper's connection if no safekeeper answers.
    """
    members = survey(addresses, LATE_SECONDS)
    check_members(members)
    members = follow(members, wanted_of(system_id, wanted), LATE_SECONDS)
    found = find_timeline(members, system_id, wanted)
    if found is not None:
        return members_of(found, members), found
    if members and all(member.error is not None for member in members):
        error = members[0].error
        assert error is not None
        raise error
    if system_id is not None:
        text = f"the safekeepers have no timeline of system {system_id}"
    else:
        text = "the safekeepers have no such timeline" if wanted else "there is no timeline"
    damage = damage_of(members, system_id)
    if damage:
        raise Refusal(f"{text} that can be opened; {damage}", hint=DAMAGE_HINT)
    raise Refusal(text, hint="List the timelines with sk timeline list.")


def warn_of_strangers(found: FoundTimeline, members: Sequence[Member]) -> None:
    """Warn of given safekeepers that are not members. A member may have left and another taken its
    place. The given addresses still lead to the members, as long as one of them does."""
    membership = found.membership
    for member in members:
        listed = membership.member(member.safekeeper_id) if member.safekeeper_id else None
        is_one = listed is not None and member.is_listed_as(listed)
        if member.error is None and not (is_one and member.safekeeper_id in membership.all_members):
            log.warning(
                "not a member of the timeline",
                safekeeper=str(member.address),
                id=member.safekeeper_id,
                members=list(membership.all_members),
            )


def members_of(found: FoundTimeline, members: Sequence[Member]) -> list[Member]:
    """The safekeepers that are members, and those that may be: that did not answer at a member's
    address."""
    return [member for member in members if may_be_member(member, found.membership)]


def _found(
    timeline: TimelineId, statuses: Sequence[Mapping[str, Any]], members: Sequence[Member]
) -> FoundTimeline:
    membership, status = greatest_membership(statuses), statuses[0]
    return FoundTimeline(
        timeline,
        ServerFacts(int(status["system_id"]), status["pg_version"], status["wal_seg_size"]),
        membership,
        addresses_of(membership, members),
    )


def _finish_activation(members: Sequence[Member], timeline: TimelineId) -> None:
    """Finish a creation that was interrupted between the activations."""
    for member in members:
        if not member.timelines.get(timeline, {"active": True})["active"]:
            member.client.command("ACTIVATE_TIMELINE", _timeline_options(timeline))


def _check_quorum(members: Sequence[Member], found: FoundTimeline) -> None:
    membership = found.membership
    wanted = set(membership.all_members)
    strangers = [m for m in members if m.error is None and m.safekeeper_id not in wanted]
    if not is_known(membership):
        _check_given(members, strangers, membership)
    alive = {
        i for i in wanted
        if any(m.is_listed_as(membership.member(i)) and found.timeline in m.timelines
               for m in members)
    }  # fmt: skip
    if not has_quorum(membership, alive):
        refused = next((m.error.hint for m in members if m.error and m.error.hint), "")
        raise Unreachable(
            f"only {len(alive)} of {len(wanted)} safekeepers can take part: "
            + "; ".join(
                missing_reason(m, found.timeline)
                for m in members_of(found, members)
                if m.error is not None or m.safekeeper_id not in alive
            ),
            hint=refused or "An election needs a quorum. Start the others.",
        )


def _check_given(
    members: Sequence[Member], strangers: Sequence[Member], membership: Membership
) -> None:
    """If the timeline does not have the addresses of its members. Raises Refusal."""
    if strangers:
        raise Refusal(
            f"safekeeper {strangers[0].safekeeper_id} ({strangers[0].address}) is not a "
            f"member of the timeline, whose members are {membership.all_members}",
            hint="Give exactly the safekeepers that the timeline was created on.",
        )
    if len(members) != len(membership.all_members):
        raise Refusal(
            f"{len(members)} safekeepers given, but the timeline's members are "
            f"{membership.all_members}",
            hint="Give exactly the safekeepers that the timeline was created on.",
        )


# ---- creation


def create_timeline(
    members: Sequence[Member], primary: Primary, wanted: TimelineId | None
) -> FoundTimeline:
    """Both steps. Raises Unreachable if a member does not answer, Refusal if one has a timeline
    that it cannot open and that may be this primary's, or has left one of it; nothing is active
    then."""
    unreachable = [member.error for member in members if member.error is not None]
    if unreachable:
        raise Unreachable(
            f"a new timeline needs all safekeepers: {unreachable[0]}",
            hint=unreachable[0].hint
            or "Start them all. Once created, the timeline needs only a quorum of them.",
        )
    damage = damage_of(members, primary.server.system_id)
    if damage:
        raise Refusal(f"no timeline is created: {damage}", hint=DAMAGE_HINT)
    _check_nothing_left(members, primary.server.system_id)
    timeline = wanted or _new_timeline_id()
    _sweep_unfinished(members, primary, wanted)
    server = primary.server
    start_lsn = primary.flush_lsn - primary.flush_lsn % server.wal_seg_size
    existing = statuses_of(timeline, members)
    membership = _first_membership(members, existing)
    options = {
        **_timeline_options(timeline),
        "system_id": str(server.system_id),
        "pg_version": str(existing[0]["pg_version"] if existing else server.pg_version),
        "wal_seg_size": str(server.wal_seg_size),
        "start_lsn": existing[0]["start_lsn"] if existing else format_lsn(start_lsn),
        "tli": str(primary.tli_history.tli),
        "tli_history": primary.tli_history.format(),
        "membership": encode_membership(membership).hex(),
    }
    for member in members:
        member.client.command("CREATE_TIMELINE", options)
    for member in members:
        member.client.command("ACTIVATE_TIMELINE", _timeline_options(timeline))
    addresses = tuple(member.address for member in members)
    return FoundTimeline(timeline, server, membership, addresses)


def _check_nothing_left(members: Sequence[Member], system_id: int) -> None:
    """A safekeeper that has left a log of this system knows the log's members. Raises Refusal."""
    for member in members:
        for timeline, status in member.left.items():
            if int(status["system_id"]) == system_id:
                raise Refusal(
                    f"no timeline is created: safekeeper {member.safekeeper_id} ({member.address}) "
                    f"has left timeline {timeline} of this system, which continues without it",
                    hint="Name the safekeepers that have it: see sk timeline list.",
                )


def _first_membership(
    members: Sequence[Member], existing: Sequence[Mapping[str, Any]]
) -> Membership:
    """A membership of all members. An interrupted creation continues with its own, whatever the
    addresses are now, if they are the same safekeepers."""
    listed = tuple(sorted(map(_as_listed, members)))
    membership = Membership(Stamp.FIRST, tuple(member.id for member in listed), (), listed)
    if existing:
        begun = membership_of_page(existing[0]["membership"])
        same = [begun.member(member.id).is_instance(member.instance) for member in listed]
        if begun.members == membership.members and all(same):
            return begun
    return membership


def _as_listed(member: Member) -> ListedMember:
    """Raises MembershipError."""
    address = member.address
    instance = bytes.fromhex(member.instance)
    return ListedMember(member.safekeeper_id, instance, address.host, address.port, member.site)


def _sweep_unfinished(
    members: Sequence[Member], primary: Primary, wanted: TimelineId | None
) -> None:
    """Delete a creation for this primary that was interrupted before anything was active. The
    primary may no longer have the WAL of its start, so it is not continued."""
    for member in members:
        for timeline, status in member.timelines.items():
            is_ours = int(status["system_id"]) == primary.server.system_id
            if not status["active"] and is_ours and timeline != wanted:
                # If another process has finished it meanwhile, the safekeeper refuses.
                options = {**_timeline_options(timeline), "unfinished": "true"}
                member.client.command("DELETE_TIMELINE", options)


def _new_timeline_id() -> TimelineId:
    return TimelineId(bytes(16), secrets.token_bytes(16))


def _timeline_options(timeline: TimelineId) -> dict[str, str]:
    return {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}
