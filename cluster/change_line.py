"""One line on a change of the members: what it is at, and what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cluster.timeline_view import TimelineView

#: How the leader calls what it was at last, when it came to nothing (walproposer/stream/events.py).
FAILED = ("refused", "gone back")


def change_line(view: TimelineView) -> str:
    """ "" when none is under way, and the last one did what it should."""
    change = view.change
    if change is not None and change["state"] != "done":
        return _of_leader(change)
    if not view.membership.is_joint:
        return _of_disks(view)
    before, after = ids_text(view.membership.members), ids_text(view.membership.new_members)
    return (
        f"the members are changed from {before} to {after}: each commit needs a quorum of both, "
        "and no proposer tells how far it is; the next one ends it, or goes back"
    )


def _of_disks(view: TimelineView) -> str:
    """D1: who was removed is needed until a quorum of those that stay has it on disk."""
    if view.is_complete or not view.uninformed_ids:
        return ""
    return (
        f"the members are {ids_text(view.membership.members)} on the disks of "
        f"{ids_text(view.informed_ids)} alone, and a quorum of them is needed: who was removed is "
        "needed still; the next proposer completes it, or the same command again"
    )


def _of_leader(change: Any) -> str:
    if change["state"] in FAILED:
        why = f": {change['error']}" if change["error"] else ""
        return f"the last change of the members, to {ids_text(change['wanted'])}, was " + (
            f"refused{why}" if change["state"] == "refused" else f"undone{why}"
        )
    details = [change[key] for key in ("waits_for", "error") if change[key]]
    line = f"the members are changed to {ids_text(change['wanted'])}: {change['state']}"
    return "; ".join([line, *details])


def ids_text(ids: Sequence[int]) -> str:
    """`1, 2, 3`."""
    return ", ".join(map(str, ids)) or "none"
