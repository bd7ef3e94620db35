"""Where two logs diverge, against an oracle that compares them byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.consensus.errors import HistoryError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.term_history import TermHistory, TermStart, highest_common_point

START = 10


def ballot(term: int) -> NodeId:
    return NodeId(term, bytes(16))


class Log:
    """A log as a list: the ballot that wrote each byte from START on; and its history."""

    def __init__(self) -> None:
        self.writers: list[NodeId] = []
        self.history = TermHistory.initial(START)

    @property
    def flush_lsn(self) -> int:
        return START + len(self.writers)

    def copy(self) -> Log:
        twin = Log()
        twin.writers, twin.history = list(self.writers), self.history
        return twin


# An election: the donor's log, the logs that follow, and how much of it each receives.
ELECTION = st.tuples(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), min_size=1, max_size=4),
    st.integers(0, 6),
)


def play(elections: list[tuple[int, list[tuple[int, int]], int]]) -> list[Log]:
    """Four logs after some elections, replicated as the protocol does it, by brute force."""
    logs = [Log() for _ in range(4)]
    for term, (donor, followers, written) in enumerate(elections, 1):
        leader = logs[donor].copy()
        leader.history = leader.history.clipped(leader.flush_lsn)
        leader.history = leader.history.extended(ballot(term), leader.flush_lsn)
        leader.writers += [ballot(term)] * written
        for follower, received in followers:
            log = logs[follower]
            common = common_prefix(leader, log)
            end = min(common + received, len(leader.writers))
            log.writers = leader.writers[:end]
            log.history = leader.history
    return logs


def common_prefix(one: Log, other: Log) -> int:
    """Bytes up to which the same ballots wrote both logs, including entries without bytes: an empty
    term also makes two logs diverge."""
    length = 0
    for a, b in zip(one.writers, other.writers, strict=False):
        if a != b:
            break
        length += 1
    for entries, theirs in ((one, other), (other, one)):
        mine = entries.history.clipped(entries.flush_lsn).entries
        known = set(theirs.history.clipped(theirs.flush_lsn).entries)
        foreign = [e.start_lsn - START for e in mine if e not in known]
        if foreign and entries is not one:
            length = min(length, *foreign)
    return length


@given(st.lists(ELECTION, max_size=8), st.integers(0, 3), st.integers(0, 3))
def test_common_point_is_the_common_prefix(
    elections: list[tuple[int, list[tuple[int, int]], int]], leader: int, follower: int
) -> None:
    logs = play(elections)
    one, other = logs[leader], logs[follower]
    proposer = one.history.clipped(one.flush_lsn).extended(ballot(99), one.flush_lsn)
    clipped = other.history.clipped(other.flush_lsn)
    point = highest_common_point(proposer, clipped, other.flush_lsn)
    shared = point - START
    # Safe: nothing is kept above the point that the leader lacks, nothing below differs.
    assert one.writers[:shared] == other.writers[:shared]
    assert shared <= min(len(one.writers), len(other.writers))
    # Tight: it reaches as far as the same ballots wrote both.
    assert shared == min(common_prefix(one, other), len(one.writers))


def test_one_ballot_with_two_starts_is_refused() -> None:
    ours = TermHistory.initial(START).extended(ballot(1), 20)
    theirs = TermHistory.initial(START).extended(ballot(1), 30)
    with pytest.raises(HistoryError, match="two starts"):
        highest_common_point(ours, theirs, 40)


def test_nothing_in_common_is_refused() -> None:
    stranger = TermHistory((TermStart(ballot(7), START),))
    with pytest.raises(HistoryError, match="nothing in common"):
        highest_common_point(TermHistory.initial(START), stranger, 40)


@pytest.mark.parametrize(
    "entries",
    [
        (TermStart(ballot(2), 10), TermStart(ballot(1), 20)),
        (TermStart(ballot(1), 10), TermStart(ballot(1), 10)),
        (TermStart(ballot(1), 20), TermStart(ballot(2), 10)),
    ],
)
def test_a_history_out_of_order_is_refused(entries: tuple[TermStart, ...]) -> None:
    with pytest.raises(HistoryError, match="out of order"):
        TermHistory(entries)


def test_last_log_node_id_counts_terms_without_records() -> None:
    history = TermHistory.initial(10).extended(ballot(1), 20).extended(ballot(2), 20)
    assert history.last_log_node_id(19) == NodeId.ZERO
    assert history.last_log_node_id(20) == ballot(2)
    assert history.clipped(19) == TermHistory.initial(10)
