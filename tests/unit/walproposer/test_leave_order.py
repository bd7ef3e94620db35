"""The order to leave for a safekeeper that is in no set: sent by the leader, or by `sk` without
one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from new_timeline import TIMELINE
from proposer_steps import MEMBERS

from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.members import leave_order
from quorum_wal.walproposer.members.leave_order import order_to_leave
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

PLACE = SafekeeperAddress("sk9", 5454)
CONFIG = ProposerConfig(PrimaryAddress(""), (SafekeeperAddress("sk1", 5454),), TIMELINE)


class Cluster:
    """Records the orders. 9 has left after this many looks, never if they are too few."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, leads: bool, looks: int = 2) -> None:
        self.said: list[str] = []
        self.looks = looks
        proposer = SimpleNamespace(
            page="10.0.0.9:7677", name_outsider=lambda place: self.said.append(f"named {place}")
        )
        monkeypatch.setattr(leave_order, "running_proposer", lambda *_: proposer if leads else None)
        monkeypatch.setattr(leave_order, "leave", lambda *_: self.said.append("LEAVE"))
        monkeypatch.setattr(leave_order, "survey", self.survey)
        monkeypatch.setattr(leave_order, "POLL_SECONDS", 0.0)

    def survey(self, places: Any) -> list[Any]:
        assert places == (PLACE,)
        self.looks -= 1
        has_left = self.looks <= 0
        held = {TIMELINE: {}}
        return [SimpleNamespace(left=held if has_left else {}, timelines={} if has_left else held)]


def test_without_a_proposer_sk_does(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, leads=False)
    order_to_leave(CONFIG, PLACE, 9, b"instance", MEMBERS)
    assert cluster.said == ["LEAVE"]


def test_d2_while_a_proposer_runs_no_other_process_sends_the_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another operator may add 9 again: the leader would enter with one about to delete its log."""
    cluster = Cluster(monkeypatch, leads=True)
    order_to_leave(CONFIG, PLACE, 9, b"instance", MEMBERS)
    assert (cluster.said, cluster.looks) == (["named sk9:5454"], 0)


def test_a_safekeeper_that_does_not_leave_in_time_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Cluster(monkeypatch, leads=True)
    monkeypatch.setattr(leave_order, "LEFT_SECONDS", 0.0)
    with pytest.raises(Unreachable, match=r"10\.0\.0\.9:7677 did not make it leave within 0 s"):
        order_to_leave(CONFIG, PLACE, 9, b"instance", MEMBERS)
