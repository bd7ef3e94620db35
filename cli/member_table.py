"""The output of `sk member list`: a row per member, then the change in progress."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from quorum_wal.cli.output import plain_table
from quorum_wal.cluster.change_line import change_line, ids_text
from quorum_wal.cluster.member_view import MemberState, MemberView
from quorum_wal.cluster.timeline_view import TimelineView
from quorum_wal.consensus.membership_page import membership_page
from quorum_wal.consensus.quorum import quorum_size
from quorum_wal.telemetry.size import bytes_text

_NOTHING = "-"


def members_section(view: TimelineView) -> RenderableType:
    """The whole output."""
    membership = view.membership
    head = Text(f"timeline {view.timeline}", style="bold")
    head.append(f"   generation {membership.generation}", style="dim")
    table = plain_table("id", "is", "address", "site", "state", "flush", "behind", "instance")
    for member in (*view.members, *view.others):
        style = "" if member.is_alive or not member.is_member else "red"
        table.add_row(*_cells(member), style=style)
    return Group(head, Text(_quorum_line(view)), table, *map(Text, (*remarks(view), *notes(view))))


def _cells(member: MemberView) -> list[str]:
    status, peer = member.status or {}, member.peer or {}
    has_lag = member.is_followed and "lag_bytes" in peer
    return [
        str(member.safekeeper_id),
        member.standing.value,
        member.address or _NOTHING,
        member.site or _NOTHING,
        member.state.value + (f", via {member.via}" if member.via else ""),
        status.get("flush_lsn", peer.get("flush_lsn", _NOTHING)),
        bytes_text(peer["lag_bytes"]) if has_lag else _NOTHING,
        member.instance or _NOTHING,
    ]


def _quorum_line(view: TimelineView) -> str:
    parts = [f"{quorum_size(len(group))} of {ids_text(group)}" for group in view.membership.groups]
    return f"a commit needs {' and '.join(parts)}"


def remarks(view: TimelineView) -> Iterator[str]:
    """Lines that need attention. Usually there are none."""
    if line := change_line(view):
        yield line
    for other in view.others:
        if other.state is MemberState.ACTIVE and not other.is_followed:
            yield (
                f"{other} has the log and is not a member: run sk member remove "
                f"{other.safekeeper_id} to inform it, or sk member add to make it a member"
            )
    if view.site_losses is not None:
        yield str(view.site_losses)


def notes(view: TimelineView) -> Iterator[str]:
    """Lasting facts that need no action."""
    if view.is_forced:
        yield (
            "the members were forced once: acknowledged commits may be missing in this log "
            "(docs/members.md)"
        )


def members_json(view: TimelineView) -> dict[str, Any]:
    """The fields of `timeline_json` about the members."""
    losses = view.site_losses
    return {
        "tenant_id": view.timeline.tenant_id.hex(),
        "timeline_id": view.timeline.timeline_id.hex(),
        "membership": membership_page(view.membership),
        "is_complete": view.is_complete,
        "change": view.change,
        "site_losses": losses.as_json() if losses is not None else None,
        "members": [member_json(member) for member in (*view.members, *view.others)],
    }


def member_json(member: MemberView) -> dict[str, Any]:
    """One member. `status` and `peer` are as the services themselves report them."""
    return {
        "safekeeper_id": member.safekeeper_id,
        "standing": member.standing.value,
        "address": member.address or None,
        "instance": member.instance or None,
        "site": member.site or None,
        "state": member.state.value,
        "reason": member.reason or None,
        "forced": bool((member.status or {}).get("forced")),
        "status": member.status,
        "peer": member.peer,
    }
