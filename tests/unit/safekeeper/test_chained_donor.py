"""What a chained reader gets: the log of a safekeeper that follows its ballot, and no other."""

from __future__ import annotations

import pytest
from acceptor_steps import A, C

from quorum_wal.consensus.ids import NodeId
from quorum_wal.safekeeper.donor_rule import DonorRule
from quorum_wal.safekeeper.errors import SafekeeperError


class Source:
    """The state that the source has published."""

    def __init__(self) -> None:
        self.promised, self.follows, self.flush_lsn = A, A, 0x100

    def rule(self, node_id: NodeId = A) -> DonorRule:
        look = lambda: (self.promised, self.flush_lsn)  # noqa: E731
        return DonorRule(node_id, look, lambda: self.follows)


def test_it_reads_up_to_the_flushed_position() -> None:
    assert Source().rule().limit_lsn() == 0x100


def test_a_source_that_has_only_voted_is_refused() -> None:
    """Its tail may be another ballot's, until its Elected has cut it."""
    source = Source()
    source.promised = C
    with pytest.raises(SafekeeperError, match="still follows"):
        source.rule(C).limit_lsn()
    source.follows = C
    assert source.rule(C).limit_lsn() == 0x100


def test_a_source_that_promised_another_ballot_meanwhile_is_refused() -> None:
    source = Source()
    rule = source.rule()
    assert rule.limit_lsn() == 0x100
    source.promised = C
    with pytest.raises(SafekeeperError, match="was promised"):
        rule.checked(b"bytes that were read before")
