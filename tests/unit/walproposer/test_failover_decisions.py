"""The failover's shell: refusals, a standby in a restartpoint, a standby that stalls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from new_timeline import first_membership

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.failover import failover
from quorum_wal.walproposer.failover.failover import Failover
from quorum_wal.walproposer.failover.log_view import LogView
from quorum_wal.walproposer.failover.promotion import Standby, Step
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

END = 0x5000000
FORK = 0x4000000
ADDRESS = SafekeeperAddress("a", 5454)
FOUND = FoundTimeline(
    TimelineId(bytes(16), bytes(16)), ServerFacts(7, 150018, 16 << 20), first_membership(1)
)
STANDBY = Standby(
    in_recovery=True,
    received_lsn=END,
    replayed_lsn=END,
    is_paused=False,
    sources=("a:5454",),
    standby_names=("walproposer",),
    has_slot=True,
    checkpointer_idle=False,
    config_age_seconds=1.0,
)


class FakeServer:
    """Follows orders, and records them."""

    def __init__(self, state: Standby) -> None:
        self.state = state
        self.orders: list[str] = []

    def read(self) -> Standby:
        return self.state

    def proposer_pid(self) -> None:
        """No proposer is attached."""

    def wake(self) -> None:
        self.orders.append("wake")

    def checkpoint(self) -> None:
        self.orders.append("checkpoint")

    def follow(self, conninfo: str) -> None:
        self.orders.append("follow")
        self.state = replace(self.state, received_lsn=END, replayed_lsn=END)

    def close(self) -> None:
        self.orders.append("close")
        self.state = replace(self.state, is_closed=True)

    def promote(self, timeout_seconds: int) -> bool:
        self.orders.append("promote")
        self.state = replace(self.state, in_recovery=False)
        return True


def failover_of(server: FakeServer, steps: list[Step]) -> Failover:
    config = ProposerConfig(PrimaryAddress(""), (ADDRESS,))
    made = Failover(config, lambda *_: END, began=steps.append)
    made.server = server  # type: ignore[assignment]
    made._found = FOUND
    return made


class FakeTime:
    """Every call of the clock advances it by 0.15 s."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        self.now += 0.15
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No clock and no network."""
    monkeypatch.setattr(failover, "time", FakeTime())
    monkeypatch.setattr(failover, "survey", lambda addresses, late_seconds: [])


def test_a_busy_checkpointer_is_asked_to_hurry() -> None:
    """Its answer, not time, proves that commits will wait."""
    server, steps = FakeServer(STANDBY), list[Step]()
    made = failover_of(server, steps)
    made._configured_at = 1000.0
    made.run()
    assert server.orders == ["wake", "checkpoint", "promote"]
    assert steps == [Step.ELECT, Step.SETTLE, Step.PROMOTE, Step.ATTACH]


def test_an_idle_checkpointer_is_enough() -> None:
    server, steps = FakeServer(replace(STANDBY, checkpointer_idle=True)), list[Step]()
    failover_of(server, steps).run()
    assert server.orders == ["wake", "promote"]


def test_it_may_end_before_the_promotion() -> None:
    server, steps = FakeServer(replace(STANDBY, checkpointer_idle=True)), list[Step]()
    failover_of(server, steps).run(Step.PROMOTE)
    assert server.orders == ["wake"]
    assert steps[-1] is Step.PROMOTE


def test_a_stalled_standby_is_pointed_at_the_safekeepers_again() -> None:
    behind = replace(STANDBY, received_lsn=END - 8, replayed_lsn=END - 8, checkpointer_idle=True)
    server, steps = FakeServer(behind), list[Step]()
    failover_of(server, steps).run()
    assert server.orders == ["wake", "follow", "promote"]


def test_what_can_prepare_is_closed_before_it_is_promoted() -> None:
    server, steps = (
        FakeServer(replace(STANDBY, checkpointer_idle=True, may_prepare=True)),
        list[Step](),
    )
    failover_of(server, steps).run()
    assert server.orders == ["wake", "close", "promote"]
    assert steps[-3:] == [Step.CLOSE, Step.PROMOTE, Step.ATTACH]


def test_a_promotion_by_another_program_also_closes_it() -> None:
    server, steps = (
        FakeServer(replace(STANDBY, checkpointer_idle=True, may_prepare=True)),
        list[Step](),
    )
    failover_of(server, steps).run(Step.PROMOTE)
    assert server.orders == ["wake", "close"]


def promoted_at(lsn: int) -> TimelineHistory:
    return TimelineHistory(2, (TimelineSwitch(1, Lsn(lsn), "promoted"),))


def log_with(history: TimelineHistory) -> LogView:
    return LogView(flush_lsn=END, start_lsn=0x1000000, history=history, answering=3)


@pytest.mark.parametrize("attaches", [True, False])
@pytest.mark.parametrize("its", [TimelineHistory(1), promoted_at(FORK + 8)], ids=["old", "other"])
def test_a_deposed_primary_is_not_promoted(its: TimelineHistory, attaches: bool) -> None:
    """The log continued without it, also if it was itself promoted, too late or a second time."""
    made = failover_of(FakeServer(STANDBY), [])
    words = "the server is a deposed primary: it left the quorum's log at 0/4000000"
    with pytest.raises(Refusal, match=words) as refused:
        made._check_promoted(its, log_with(promoted_at(FORK)), attaches=attaches)
    assert refused.value.hint == "Stop it, then make it a standby with sk rejoin."


def test_a_primary_that_was_promoted_at_the_log_s_end_is_no_deposed_one() -> None:
    """A promotion that was interrupted before attaching; the log does not have its timeline yet."""
    made = failover_of(FakeServer(STANDBY), [])
    for attaches in (True, False):
        made._check_promoted(promoted_at(END), log_with(TimelineHistory(1)), attaches=attaches)
