"""Which addresses the next incarnation is given, and which it only knows."""

from __future__ import annotations

from new_timeline import SERVER, TIMELINE, first_membership

from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.service import candidacy_of
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

CONNINFO = "user=walproposer"


def test_what_was_learnt_is_not_given() -> None:
    """A given address is tried forever."""
    one, two, gone = (SafekeeperAddress(host, 5454, CONNINFO) for host in ("sk1", "sk2", "gone"))
    found = FoundTimeline(TIMELINE, SERVER, first_membership(1, 2), (gone, two, one))
    config = ProposerConfig(PrimaryAddress(""), (one, two))
    candidacy = candidacy_of(config, found, found.addresses)
    assert candidacy.addresses == (("sk2", 5454), ("sk1", 5454))
    assert candidacy.learnt == (("gone", 5454),)
