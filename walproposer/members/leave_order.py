"""`order_to_leave`: orders a safekeeper that is in no set, but still has the log, to leave.

    its proposer runs:   POST /members/outside; the leader sends the order; then wait for its effect
    no proposer runs:    LEAVE_TIMELINE from here

Law (D2): a leader enters a joint set only with a safekeeper that is not about to delete its log on
an order with that same leader's membership. The leader knows its own orders. So while it runs, no
other process may send one. The safekeeper refuses the order after a later election, because the new
leader stamps the membership again.
"""

from __future__ import annotations

import time

from quorum_wal.consensus.membership import Membership
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.members.change import POLL_SECONDS, running_proposer
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.joining import leave
from quorum_wal.walproposer.timelines.survey import survey

#: A leader sends the order at once. Deleting the WAL may take long.
LEFT_SECONDS = 30.0


def order_to_leave(
    config: ProposerConfig,
    place: SafekeeperAddress,
    safekeeper_id: int,
    instance: bytes,
    membership: Membership,
    *,
    http_token: str = "",
) -> None:
    """Order the safekeeper at `place` to leave `config.timeline`, with a `membership` that is
    complete (D1). Raises WalProposerError if it has not left."""
    timeline = config.timeline
    assert timeline is not None
    proposer = running_proposer(config, timeline, http_token)
    if proposer is None:
        leave(place, timeline, safekeeper_id, instance, membership)
        return
    proposer.name_outsider(place)
    deadline = time.monotonic() + LEFT_SECONDS
    while time.monotonic() < deadline:
        (found,) = survey((place,))
        if timeline in found.left and timeline not in found.timelines:
            return
        time.sleep(POLL_SECONDS)
    raise Unreachable(
        f"proposer {proposer.page} did not make it leave within {LEFT_SECONDS:g} s",
        hint="Another change may have added it again. Check with sk member list.",
    )
