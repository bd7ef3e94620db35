"""`sk status --primary`: roles of servers, and remarks about a primary."""

from __future__ import annotations

from dataclasses import replace

import pytest
from healthy_primary import ADDRESS, HEALTHY

from quorum_wal.cluster.server_view import Leader, Role, ServerView, server_view, with_contenders
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.failover.log_view import LogView, log_view
from quorum_wal.walproposer.primary.commit_waits import CommitWaits
from quorum_wal.walproposer.primary.primary_settings import PrimarySettings, Slot

FIRST = TimelineHistory(1)
SECOND = TimelineHistory(2, (TimelineSwitch(1, Lsn(0x3000000)),))
LEADER = Leader("127.0.0.1:7677", "host=winner")


def log_of(history: TimelineHistory, flush_lsn: int = 0x5000000) -> LogView:
    return LogView(flush_lsn, 0x1000000, history, 3)


@pytest.mark.parametrize(
    ("history", "logs", "role"),
    [
        (FIRST, [log_of(FIRST)], Role.PRIMARY),
        (SECOND, [log_of(SECOND)], Role.PRIMARY),
        (SECOND, [log_of(FIRST, 0x3000000)], Role.PRIMARY),  # promoted, not attached yet
        (FIRST, [log_of(SECOND)], Role.DEPOSED),
        (SECOND, [log_of(FIRST)], Role.DEPOSED),
        (FIRST, [log_of(SECOND), log_of(FIRST)], Role.PRIMARY),
        (FIRST, [], Role.STRANGER),
    ],
)
def test_the_role(history: TimelineHistory, logs: list[LogView], role: Role) -> None:
    view = server_view(ADDRESS, HEALTHY, history, logs)
    assert view.role is role
    if role is Role.DEPOSED:
        assert "left the quorum's log at 0/3000000" in view.remarks[0]
        assert "sk rejoin" in view.remarks[0]


@pytest.mark.parametrize(
    ("slot", "leader", "role"),
    [
        (Slot("physical", "reserved", 42, "walproposer"), LEADER, Role.PRIMARY),
        (Slot("physical", "reserved", None, ""), LEADER, Role.OTHER),
        (None, LEADER, Role.OTHER),
        (None, None, Role.PRIMARY),  # no proposer streams from any server
    ],
)
def test_a_server_of_the_same_timeline_without_a_proposer(
    slot: Slot | None, leader: Leader | None, role: Role
) -> None:
    """Two promotions at once, or a copy."""
    settings = replace(HEALTHY, slot=slot)
    view = server_view(ADDRESS, settings, SECOND, [log_of(SECOND)], leader)
    assert view.role is role
    if role is Role.OTHER:
        assert "streams from another server (host=winner)" in view.remarks[0]
        assert "base backup" in view.remarks[0]


@pytest.mark.parametrize(
    ("holder_pids", "roles"),
    [
        ((None, None), [Role.CONTENDER, Role.CONTENDER]),
        ((42, None), [Role.PRIMARY, Role.OTHER]),  # its proposer's page does not answer
        ((None, 42), [Role.OTHER, Role.PRIMARY]),
        ((42, 43), [Role.CONTENDER, Role.CONTENDER]),
        ((42, 42), [Role.PRIMARY, Role.PRIMARY]),  # one server under two names
        ((42, 43, None), [Role.CONTENDER] * 3),
    ],
)
def test_of_several_primaries_one_keeps_the_role(
    holder_pids: tuple[int | None, ...], roles: list[Role]
) -> None:
    views = [
        ServerView(dsn=f"host={i}", role=Role.PRIMARY, system_id=7, holder_pid=pid)
        for i, pid in enumerate(holder_pids)
    ]
    settled = with_contenders(views, {7})
    assert [view.role for view in settled] == roles
    for view in settled:
        assert bool(view.remarks) is (view.role is not Role.PRIMARY)
    assert with_contenders(views, set()) == views  # each may have a log of its own
    stranger = replace(views[0], system_id=8)
    standby = replace(views[0], role=Role.STANDBY)
    assert with_contenders([stranger, views[1], standby], {7, 8}) == [stranger, views[1], standby]
    assert with_contenders([views[0], views[0]], {7}) == [views[0], views[0]]


def test_a_standby_has_nothing_to_wait_for() -> None:
    standby = replace(HEALTHY, in_recovery=True)
    view = server_view(ADDRESS, standby, FIRST, [log_of(SECOND)])
    assert view.role is Role.STANDBY
    assert view.remarks == ()


def with_setting(name: str, value: str) -> PrimarySettings:
    return replace(HEALTHY, settings={**HEALTHY.settings, name: value})


@pytest.mark.parametrize(
    ("settings", "remark"),
    [
        (
            replace(HEALTHY, commit_waits=CommitWaits(3, 1, 12.4)),
            "3 commits wait, the longest for 12 s",
        ),
        (with_setting("synchronous_commit", "off"), "commits return before the quorum has them"),
        (with_setting("fsync", "off"), "a crash of the machine would corrupt"),
    ],
)
def test_dangers_for_commits_are_remarks(settings: PrimarySettings, remark: str) -> None:
    remarks = server_view(ADDRESS, settings, FIRST, [log_of(FIRST)]).as_json()["remarks"]
    assert any(remark in each for each in remarks), remarks
    assert not any("sk status" in each for each in remarks), "sk status itself prints them"


def test_a_short_wait_is_not_a_remark() -> None:
    busy = replace(HEALTHY, commit_waits=CommitWaits(30, 0, 0.01))
    assert not server_view(ADDRESS, busy, FIRST, [log_of(FIRST)]).as_json()["remarks"]


def test_the_log_is_that_of_the_next_donor() -> None:
    """The greatest NodeId first; a longer log of a smaller one does not count."""

    def status(term: int, flush_lsn: str, tli: int, history: str) -> dict[str, object]:
        return {
            "last_log_node_id": {"term": term, "uuid": "00" * 16}, "flush_lsn": flush_lsn,
            "start_lsn": "0/1000000", "tli": tli, "tli_history": history,
        }  # fmt: skip

    view = log_view([status(1, "0/9000000", 1, ""), status(2, "0/5000000", 2, "1\t0/3000000\t\n")])
    assert view.history.tli == 2
    assert view.flush_lsn == 0x9000000
    assert view.answering == 2
    assert view.proposer == ""


def test_a_proposer_streams_if_a_member_has_heard_of_it_lately() -> None:
    """The connections of a lost machine stay open for a while."""

    def status(term: int, silent_seconds: float) -> dict[str, object]:
        named = {"term": term, "uuid": "00" * 16}
        proposer = {"node_id": named, "address": f"10.0.0.{term}:4000", "http": ""}
        proposer["silent_seconds"] = silent_seconds
        return {
            "last_log_node_id": named, "flush_lsn": "0/5000000", "start_lsn": "0/1000000",
            "tli": 1, "tli_history": "", "proposer": proposer,
        }  # fmt: skip

    assert log_view([status(2, 6.0), status(2, 7.0)]).proposer == ""
    assert log_view([status(2, 6.0), status(1, 0.1), status(1, 0.2)]).proposer == (
        "the proposer of term 1 at 10.0.0.1:4000 streams to 2 safekeepers"
    )


def test_a_deposed_primary_that_acknowledges_commits_is_reported() -> None:
    settings = with_setting("synchronous_standby_names", "")
    view = server_view(ADDRESS, settings, FIRST, [log_of(SECOND)])
    assert view.role is Role.DEPOSED
    assert "acknowledges commits that no quorum has: stop it at once" in view.remarks[0]


def test_an_unreadable_history_does_not_make_a_server_unreachable() -> None:
    view = server_view(ADDRESS, HEALTHY, "permission denied", [log_of(FIRST)])
    assert view.role is Role.PRIMARY
    assert view.remarks == ("could not find out whether it was deposed: permission denied",)
