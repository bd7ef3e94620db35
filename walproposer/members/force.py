"""FORCE_MEMBERSHIP: sets the members by an operator's decision.

See `docs/members.md`, "A quorum is lost for good". No safekeeper votes on it, so the caller must
have asked the operator. The safekeeper refuses it while a proposer streams to it.
"""

from __future__ import annotations

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import Membership
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient


def force_membership(
    address: SafekeeperAddress, timeline: TimelineId, membership: Membership
) -> None:
    """Raises WalProposerError."""
    SafekeeperClient(address).command(
        "FORCE_MEMBERSHIP",
        {
            "tenant_id": timeline.tenant_id.hex(),
            "timeline_id": timeline.timeline_id.hex(),
            "membership": encode_membership(membership).hex(),
        },
    )
