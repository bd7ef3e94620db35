"""Which timeline, which members: found on the safekeepers, or created on all of them.

A creation has two steps, and only a timeline whose creation is finished ever votes:

    1. CREATE_TIMELINE on every member       (all must be reachable)
    2. ACTIVATE_TIMELINE on every member     (only when all of them have it)

So as soon as one member is active, a member without the timeline is one that lost its data: it has
forgotten its promises, and must never be given the timeline again (the law, "Amnesia").
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from consensus.ids import TimelineId, parse_id
from consensus.membership import Membership
from consensus.messages import ServerFacts
from consensus.quorum import has_quorum
from pgwal.lsn import format_lsn
from walproposer.errors import Refusal, Unreachable, WalProposerError
from walproposer.primary.primary import Primary
from walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient

#: How long a member may be silent when a majority has answered: a failover does not wait for one
#: that is frozen or cut off.
LATE_SECONDS = 1.0


DAMAGE_HINT = (
    "It exists, and may hold acknowledged commits: mend it. One that is not needed any more goes "
    "by sk timeline delete."
)


@dataclass(slots=True)
class Member:
    """What a safekeeper answered; `error` when it did not. `damaged` maps the folders of timelines
    that it cannot open to the reasons: those exist, and nothing but the name is known of them."""

    client: SafekeeperClient
    safekeeper_id: int = 0
    http: str = ""
    timelines: dict[TimelineId, dict[str, Any]] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)
    error: WalProposerError | None = None


@dataclass(frozen=True, slots=True)
class FoundTimeline:
    timeline: TimelineId
    server: ServerFacts
    membership: Membership

    def check_server(self, theirs: ServerFacts) -> None:
        """Whether a server can be this timeline's primary. Raises Refusal."""
        ours = self.server
        if ours.system_id != theirs.system_id:
            raise Refusal(
                f"the primary has system identifier {theirs.system_id}, "
                f"the timeline belongs to {ours.system_id}",
                hint="Attach the primary this timeline was created for, or name another "
                "--timeline.",
            )
        if ours.pg_major != theirs.pg_major or ours.wal_seg_size != theirs.wal_seg_size:
            raise Refusal(
                f"the primary is Postgres {theirs.pg_major} with {theirs.wal_seg_size} byte "
                f"segments, the timeline was created for {ours.pg_major} with {ours.wal_seg_size}",
                hint="A major upgrade needs a new timeline.",
            )


def survey(
    addresses: Sequence[SafekeeperAddress], late_seconds: float | None = None
) -> list[Member]:
    """Ask all at once; an unreachable one is reported in its `error`. With `late_seconds`, once a
    majority has answered and has timelines, those that are frozen or cut off are waited for no
    longer than that; members that have none are new, or have lost theirs, and all count."""
    answers: SimpleQueue[tuple[int, Member]] = SimpleQueue()
    for number, address in enumerate(addresses):
        # A daemon: nobody waits for one that is late, not even at the end of the process.
        Thread(target=_answer, args=(number, address, answers), daemon=True).start()
    members: dict[int, Member] = {}
    deadline = None
    while len(members) < len(addresses):
        holding = sum(bool(member.timelines) for member in members.values())
        if late_seconds is not None and deadline is None and holding > len(addresses) // 2:
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
        identity = member.client.identify()
        member.safekeeper_id = int(identity["safekeeper_id"])
        member.http = identity["http"]
        for status in member.client.timelines():
            if "folder" in status:
                member.damaged[status["folder"]] = status["stopped_reason"]
            else:
                member.timelines[_timeline_of(status)] = status
    except WalProposerError as error:
        member.error = error
    except Exception as error:  # whatever is wrong with the answer, somebody waits for ours
        member.error = Unreachable(
            f"{address} does not answer as a safekeeper does: {type(error).__name__}: {error}",
            hint="Is it another server, or another release?",
        )
    answers.put((number, member))


def statuses_of(timeline: TimelineId, members: Sequence[Member]) -> list[dict[str, Any]]:
    """What the members that have it say of it."""
    return [member.timelines[timeline] for member in members if timeline in member.timelines]


def check_members(members: Sequence[Member]) -> None:
    """Raises Refusal when two addresses lead to one safekeeper id."""
    seen: dict[int, SafekeeperAddress] = {}
    for member in members:
        if member.error is None and member.safekeeper_id in seen:
            raise Refusal(
                f"safekeepers {seen[member.safekeeper_id]} and {member.client.address} have the "
                f"same id {member.safekeeper_id}",
                hint="Give every safekeeper its own --id and data directory.",
            )
        seen[member.safekeeper_id] = member.client.address


def find_timeline(
    members: Sequence[Member], system_id: int | None, wanted: TimelineId | None
) -> FoundTimeline | None:
    """The finished timeline of this system on these safekeepers; None when there is none.

    Raises Refusal when there are several, or when fewer than a quorum of its members answer.
    """
    statuses: dict[TimelineId, list[dict[str, Any]]] = {}
    for member in members:
        for timeline, status in member.timelines.items():
            if wanted is None and system_id is not None and int(status["system_id"]) != system_id:
                continue
            if wanted in (None, timeline) and status["active"]:
                statuses.setdefault(timeline, []).append(status)
    if len(statuses) > 1:
        names = ", ".join(sorted(map(str, statuses)))
        raise Refusal(
            f"the safekeepers have {len(statuses)} timelines of this primary: {names}",
            hint="Name one with --timeline TENANT/TIMELINE.",
        )
    if not statuses:
        return None
    timeline, found = statuses.popitem()
    result = _found(timeline, found[0])
    _finish_activation(members, timeline)
    _check_quorum(members, result)
    return result


def require_timeline(
    addresses: Sequence[SafekeeperAddress], system_id: int | None, wanted: TimelineId | None
) -> tuple[list[Member], FoundTimeline]:
    """The members of a timeline that must be there, and it; `system_id` None is any system.

    Raises what `check_members` and `find_timeline` do, Refusal when there is none, and what the
    first safekeeper's connection raised when not one of them answers.
    """
    members = survey(addresses, LATE_SECONDS)
    check_members(members)
    found = find_timeline(members, system_id, wanted)
    if found is not None:
        return members, found
    if members and all(member.error is not None for member in members):
        error = members[0].error
        assert error is not None
        raise error
    if system_id is not None:
        text = f"the safekeepers have no timeline of system {system_id}"
    else:
        text = "the safekeepers have no such timeline" if wanted else "there is no timeline"
    damage = damage_of(members)
    if damage:
        raise Refusal(f"{text} that can be opened; {damage}", hint=DAMAGE_HINT)
    raise Refusal(text, hint="sk timeline list shows those there are.")


def _found(timeline: TimelineId, status: dict[str, Any]) -> FoundTimeline:
    membership = status["membership"]
    return FoundTimeline(
        timeline,
        ServerFacts(int(status["system_id"]), status["pg_version"], status["wal_seg_size"]),
        Membership(
            membership["generation"],
            tuple(membership["members"]),
            tuple(membership["new_members"]),
        ),
    )


def _finish_activation(members: Sequence[Member], timeline: TimelineId) -> None:
    """A creation that was interrupted between the activations."""
    for member in members:
        if not member.timelines.get(timeline, {"active": True})["active"]:
            member.client.command("ACTIVATE_TIMELINE", _timeline_options(timeline))


def _check_quorum(members: Sequence[Member], found: FoundTimeline) -> None:
    wanted = set(found.membership.all_members)
    strangers = [m for m in members if m.error is None and m.safekeeper_id not in wanted]
    if strangers:
        raise Refusal(
            f"safekeeper {strangers[0].safekeeper_id} ({strangers[0].client.address}) is not a "
            f"member of the timeline, whose members are {found.membership.all_members}",
            hint="Give exactly the safekeepers the timeline was created on.",
        )
    if len(members) != len(wanted):
        raise Refusal(
            f"{len(members)} safekeepers given, but the timeline's members are "
            f"{found.membership.all_members}",
            hint="Give exactly the safekeepers the timeline was created on.",
        )
    alive = {m.safekeeper_id for m in members if found.timeline in m.timelines}
    if not has_quorum(found.membership, alive):
        raise Unreachable(
            f"only {len(alive)} of {len(wanted)} safekeepers can take part: "
            + "; ".join(
                missing_reason(m, found.timeline)
                for m in members
                if found.timeline not in m.timelines
            ),
            hint="A quorum is needed to win an election.",
        )


def missing_reason(member: Member, timeline: TimelineId) -> str:
    """Why a member does not have the timeline."""
    if member.error is not None:
        return str(member.error)
    name = f"safekeeper {member.safekeeper_id} ({member.client.address})"
    damage = member.damaged.get(folder_name(timeline))
    return f"{name} is damaged: {damage}" if damage else f"{name} lost its data"


def folder_name(timeline: TimelineId) -> str:
    """Of a timeline's folder on a safekeeper: by that, one that it cannot open is known."""
    return f"{timeline.tenant_id.hex()}.{timeline.timeline_id.hex()}"


def damage_of(members: Sequence[Member]) -> str:
    """The first timeline that a member cannot open; "" when there is none."""
    for member in members:
        for folder, reason in member.damaged.items():
            return (
                f"safekeeper {member.safekeeper_id} ({member.client.address}) cannot open "
                f"timeline {folder}: {reason}"
            )
    return ""


def create_timeline(
    members: Sequence[Member], primary: Primary, wanted: TimelineId | None
) -> FoundTimeline:
    """Both steps. Raises Unreachable when a member does not answer, Refusal when one has a timeline
    that it cannot open, which may be this primary's; nothing is active then."""
    unreachable = [member.error for member in members if member.error is not None]
    if unreachable:
        raise Unreachable(
            f"a new timeline needs all safekeepers: {unreachable[0]}",
            hint="Once created, it lives with a quorum of them.",
        )
    damage = damage_of(members)
    if damage:
        raise Refusal(f"no timeline is created: {damage}", hint=DAMAGE_HINT)
    timeline = wanted or _new_timeline_id()
    _sweep_unfinished(members, primary, wanted)
    membership = Membership(1, tuple(sorted(member.safekeeper_id for member in members)))
    server = primary.server
    start_lsn = primary.flush_lsn - primary.flush_lsn % server.wal_seg_size
    existing = statuses_of(timeline, members)
    options = {
        **_timeline_options(timeline),
        "system_id": str(server.system_id),
        "pg_version": str(existing[0]["pg_version"] if existing else server.pg_version),
        "wal_seg_size": str(server.wal_seg_size),
        "start_lsn": existing[0]["start_lsn"] if existing else format_lsn(start_lsn),
        "tli": str(primary.tli_history.tli),
        "tli_history": primary.tli_history.format(),
        "generation": str(membership.generation),
        "members": ",".join(map(str, membership.members)),
    }
    for member in members:
        member.client.command("CREATE_TIMELINE", options)
    for member in members:
        member.client.command("ACTIVATE_TIMELINE", _timeline_options(timeline))
    return FoundTimeline(timeline, server, membership)


def _sweep_unfinished(
    members: Sequence[Member], primary: Primary, wanted: TimelineId | None
) -> None:
    """A creation for this primary that was interrupted before anything was active. Its start may
    have left the primary's pg_wal, so it is not continued."""
    for member in members:
        for timeline, status in member.timelines.items():
            is_ours = int(status["system_id"]) == primary.server.system_id
            if not status["active"] and is_ours and timeline != wanted:
                # Should somebody else have finished it meanwhile, the safekeeper refuses.
                options = {**_timeline_options(timeline), "unfinished": "true"}
                member.client.command("DELETE_TIMELINE", options)


def _new_timeline_id() -> TimelineId:
    return TimelineId(bytes(16), secrets.token_bytes(16))


def _timeline_of(status: dict[str, Any]) -> TimelineId:
    return TimelineId(
        parse_id(status["tenant_id"], "tenant id"), parse_id(status["timeline_id"], "timeline id")
    )


def _timeline_options(timeline: TimelineId) -> dict[str, str]:
    return {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}
