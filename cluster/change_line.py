"""One line about a change of the members: its state, and what it waits for. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from quorum_wal.cluster.timeline_view import TimelineView

#: The states of a failed change on the leader's status page (walproposer/stream/events.py).
FAILED = ("refused", "gone back")


def change_line(view: TimelineView) -> str:
    """ "" if no change is under way and the last one succeeded."""
    change = view.change
    if change is not None and change["state"] != "done":
        return _of_leader(change)
    if not view.membership.is_joint:
        return _of_disks(view)
    before, after = ids_text(view.membership.members), ids_text(view.membership.new_members)
    return (
        f"the members are being changed from {before} to {after}: each commit needs a quorum of "
        "both, and no proposer reports the progress; the next proposer completes or cancels it"
    )


def _of_disks(view: TimelineView) -> str:
    """D1: removed members are needed until a quorum of the others has the change on disk."""
    if view.is_complete or not view.uninformed_ids:
        return ""
    return (
        f"the membership {ids_text(view.membership.members)} is on disk only on safekeeper "
        f"{ids_text(view.informed_ids)}, and a quorum is needed: removed members are still needed; "
        "the next proposer completes the change, or run the same command again"
    )


def _of_leader(change: Any) -> str:
    if change["state"] in FAILED:
        why = f": {change['error']}" if change["error"] else ""
        return f"the last change of the members, to {ids_text(change['wanted'])}, was " + (
            f"refused{why}" if change["state"] == "refused" else f"undone{why}"
        )
    details = [change[key] for key in ("waits_for", "error") if change[key]]
    line = f"the members are being changed to {ids_text(change['wanted'])}: {change['state']}"
    return "; ".join([line, *details])


def ids_text(ids: Sequence[int]) -> str:
    """`1, 2, 3`."""
    return ", ".join(map(str, ids)) or "none"
