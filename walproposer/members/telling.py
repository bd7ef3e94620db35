"""`tell_to_leave`: one that is in no set, and holds the log still, is told that it has left.

    its proposer runs:   POST /members/outside, and the leader tells it; then look until it has left
    no proposer runs:    LEAVE_TIMELINE from here

Law (D2): a leader enters a joint set only with who is not about to delete its log by a word of that
same leader's membership. Its own words it knows; so while it runs nobody else may send one. By who
is elected later the word is refused: he stamps the membership anew.
"""

from __future__ import annotations

import time

from consensus.membership import Membership
from walproposer.config import ProposerConfig
from walproposer.errors import Unreachable
from walproposer.members.change import LOOK_SECONDS, running_proposer
from walproposer.safekeeper_client import SafekeeperAddress
from walproposer.stream.joining import leave
from walproposer.timelines.survey import survey

#: A leader tells at once whom it meets; deleting the WAL may take long.
LEFT_SECONDS = 30.0


def tell_to_leave(
    config: ProposerConfig,
    place: SafekeeperAddress,
    safekeeper_id: int,
    instance: bytes,
    membership: Membership,
    *,
    http_token: str = "",
) -> None:
    """`config.timeline` at `place`, by a `membership` that is complete (D1). Raises
    WalProposerError when it has not left."""
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
        time.sleep(LOOK_SECONDS)
    raise Unreachable(
        f"proposer {proposer.page} has not told it within {LEFT_SECONDS:g} s",
        hint="Another change may want it again: sk member list shows that.",
    )
