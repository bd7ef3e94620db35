"""The failover's shell: refusals, a standby in a restartpoint, a standby that stalls."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_pages import TIMELINE
from healthy_primary import HEALTHY
from new_timeline import first_membership

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
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

END = 0x5000000
FORK = 0x4000000
ADDRESS = SafekeeperAddress("a", 5454)
FOUND = FoundTimeline(TIMELINE, ServerFacts(7, 150018, 16 << 20), first_membership(1), (ADDRESS,))
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
FIRST = TimelineHistory(1)
#: It was promoted already.
PRIMARY = replace(STANDBY, in_recovery=False)


class FakeServer:
    """Follows orders, and records them. `history`: of its timeline."""

    def __init__(self, state: Standby, history: TimelineHistory = FIRST) -> None:
        self.state = state
        self.history = history
        self.orders: list[str] = []

    def read(self) -> Standby:
        return self.state

    def read_history(self) -> tuple[TimelineHistory, int]:
        return self.history, self.state.end_lsn

    def read_history_of(self, _: PrimarySettings) -> TimelineHistory:
        return self.history

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
    return made


def prepared(server: FakeServer, steps: list[Step]) -> Failover:
    """Its checks have passed."""
    made = failover_of(server, steps)
    made.prepare()
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
    """No clock and no network. The log is that of the first timeline."""
    monkeypatch.setattr(failover, "time", FakeTime())
    monkeypatch.setattr(failover, "survey", lambda addresses, late_seconds: [])
    monkeypatch.setattr(failover, "read_primary_settings", lambda _: HEALTHY)
    monkeypatch.setattr(failover, "require_timeline", lambda *_: ([], FOUND))
    log_has(FIRST, monkeypatch)


def log_has(history: TimelineHistory, monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogView(flush_lsn=END, start_lsn=0x1000000, history=history, answering=3)
    monkeypatch.setattr(failover, "log_view", lambda _: log)


def test_a_busy_checkpointer_is_asked_to_hurry() -> None:
    """Its answer, not time, proves that commits will wait."""
    server, steps = FakeServer(STANDBY), list[Step]()
    prepared(server, steps).run()
    assert server.orders == ["wake", "checkpoint", "promote"]
    assert steps == [Step.ELECT, Step.SETTLE, Step.PROMOTE, Step.ATTACH]


def test_an_idle_checkpointer_is_enough() -> None:
    server, steps = FakeServer(replace(STANDBY, checkpointer_idle=True)), list[Step]()
    prepared(server, steps).run()
    assert server.orders == ["wake", "promote"]


def test_it_may_end_before_the_promotion() -> None:
    server, steps = FakeServer(replace(STANDBY, checkpointer_idle=True)), list[Step]()
    prepared(server, steps).run(Step.PROMOTE)
    assert server.orders == ["wake"]
    assert steps[-1] is Step.PROMOTE


def test_a_stalled_standby_is_pointed_at_the_safekeepers_again() -> None:
    behind = replace(STANDBY, received_lsn=END - 8, replayed_lsn=END - 8, checkpointer_idle=True)
    server, steps = FakeServer(behind), list[Step]()
    prepared(server, steps).run()
    assert server.orders == ["wake", "follow", "promote"]


def test_what_can_prepare_is_closed_before_it_is_promoted() -> None:
    server, steps = (
        FakeServer(replace(STANDBY, checkpointer_idle=True, may_prepare=True)),
        list[Step](),
    )
    prepared(server, steps).run()
    assert server.orders == ["wake", "close", "promote"]
    assert steps[-3:] == [Step.CLOSE, Step.PROMOTE, Step.ATTACH]


def test_a_promotion_by_another_program_also_closes_it() -> None:
    server, steps = (
        FakeServer(replace(STANDBY, checkpointer_idle=True, may_prepare=True)),
        list[Step](),
    )
    prepared(server, steps).run(Step.PROMOTE)
    assert server.orders == ["wake", "close"]


def promoted_at(lsn: int) -> TimelineHistory:
    return TimelineHistory(2, (TimelineSwitch(1, Lsn(lsn), "promoted"),))


@pytest.mark.parametrize("attaches", [True, False])
@pytest.mark.parametrize("its", [TimelineHistory(1), promoted_at(FORK + 8)], ids=["old", "other"])
def test_a_deposed_primary_is_not_promoted(
    its: TimelineHistory, attaches: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log continued without it, also if it was itself promoted, too late or a second time."""
    log_has(promoted_at(FORK), monkeypatch)
    made = failover_of(FakeServer(PRIMARY, its), [])
    words = "the server is a deposed primary: it left the quorum's log at 0/4000000"
    with pytest.raises(Refusal, match=words) as refused:
        made.prepare(attaches=attaches)
    assert refused.value.hint == "Stop it, then make it a standby with sk rejoin."


def test_a_primary_that_was_promoted_at_the_log_s_end_is_no_deposed_one() -> None:
    """A promotion that was interrupted before attaching; the log does not have its timeline yet."""
    for attaches in (True, False):
        made = failover_of(FakeServer(PRIMARY, promoted_at(END)), [])
        found, log, state = made.prepare(attaches=attaches)
        assert (found, log.history, state.standby) == (FOUND, FIRST, PRIMARY)
