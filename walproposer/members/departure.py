"""Telling a safekeeper that it has left a timeline (LEAVE_TIMELINE).

Law (D1): only when the membership without it is complete, on the disks of a quorum of its members;
whoever calls this has seen that. The safekeeper itself refuses a membership that names it, or that
is less than its own.
"""

from __future__ import annotations

from consensus.ids import TimelineId
from consensus.membership import Membership
from consensus.membership_codec import encode_membership
from walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient


def tell_to_leave(address: SafekeeperAddress, timeline: TimelineId, membership: Membership) -> None:
    """Raises WalProposerError."""
    SafekeeperClient(address).command(
        "LEAVE_TIMELINE",
        {
            "tenant_id": timeline.tenant_id.hex(),
            "timeline_id": timeline.timeline_id.hex(),
            "membership": encode_membership(membership).hex(),
        },
    )
