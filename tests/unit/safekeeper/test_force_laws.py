"""The reasons for the two laws of `sk member force`: without each of them, the harm is visible."""

from __future__ import annotations

import pytest
from acceptor_steps import greeting, history, new_acceptor, stamped, vote_request
from cluster_pages import Answers, instance, membership, node_id, safekeeper, silent
from new_timeline import INSTANCE
from wal_log import START_LSN

from quorum_wal.cluster import force_plan
from quorum_wal.cluster.force_plan import plan_force
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.messages import VoteResponse
from quorum_wal.consensus.quorum import has_quorum
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.events import Reply
from quorum_wal.safekeeper.force_rule import forced

#: The leader when 1 was last seen; and the one that 2 and 3 elected since, which is unknown to all
#: that are left.
SEEN, UNSEEN = NodeId(5, bytes(15) + b"\5"), NodeId(9, b"unseen".ljust(16))


def left_alone() -> Acceptor:
    """Safekeeper 1, with the state on disk when 2 and 3 were lost."""
    terms = history((SEEN, START_LSN))
    return new_acceptor(promised=SEEN, membership=stamped(SEEN), term_history=terms)


def forced_membership() -> Membership:
    """As `sk member force 2 3` writes it."""
    ends = {"last_log_node_id": node_id(5), "promised": node_id(5), "proposer": None}
    one = safekeeper(1, membership=membership(1, 2, 3, term=5), **ends)
    view = Answers([one, silent(2), silent(3)], {}).view()
    return plan_force(view, [2, 3], b"operator".ljust(16)).membership


def vote_of(acceptor: Acceptor, candidate: NodeId, stamp: Stamp) -> VoteResponse:
    acceptor.step(greeting())
    replies = acceptor.step(vote_request(candidate, stamp=stamp))
    (vote,) = [reply.message for reply in replies if isinstance(reply, Reply)]
    assert isinstance(vote, VoteResponse)
    return vote


@pytest.mark.parametrize("is_kept", [True, False])
def test_f2_the_stamp_is_above_what_the_lost_may_hold(
    is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proposer that 2 and 3 elected still runs, and reaches 1 again. One term above the terms
    seen would be too little: the proposer would take over the log that the operator chose."""
    if not is_kept:
        monkeypatch.setattr(force_plan, "TERMS_AHEAD", 1)
    acceptor = left_alone()
    control = forced(1, bytes.fromhex(instance(1)), acceptor.control, forced_membership())
    acceptor = Acceptor(1, INSTANCE, control, START_LSN)
    assert vote_of(acceptor, UNSEEN, Stamp(UNSEEN, 1)).granted is not is_kept


@pytest.mark.parametrize("is_kept", [True, False])
def test_f1_the_lost_ones_never_come_back(is_kept: bool) -> None:
    """Two of them elect any candidate, by the members that they know: a second log. Their state
    does not show that it has ended, so the operator must make sure."""
    returned = [] if is_kept else [2, 3]
    votes = [vote_of(left_alone(), UNSEEN, Stamp(SEEN, 1)) for _ in returned]
    assert all(vote.granted for vote in votes)
    assert has_quorum(stamped(SEEN), returned) is not is_kept
