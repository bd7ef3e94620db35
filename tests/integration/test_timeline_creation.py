"""A timeline is created on all of its members or on none, and only once.

A creation has two steps, each a command to every member (`timelines/timeline_creation.py`). Here a
member becomes unreachable before each of the six commands.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hand_written_proposer import command, named, timeline_id

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pg_fixtures.cluster import PRIMARY, QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.proxy import TcpProxy
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_fixtures.wal_comparison import compare_wal
from quorum_wal.pgclient.connection import CONNECT_TIMEOUT_SECONDS
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.data_directory import folder_name
from quorum_wal.walproposer import service
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Unreachable, WalProposerError
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from quorum_wal.walproposer.service import WalProposer
from quorum_wal.walproposer.timelines.primary_log import PrimaryLog
from quorum_wal.walproposer.timelines.survey import LATE_SECONDS, check_members, survey
from quorum_wal.walproposer.timelines.timeline_creation import (
    FoundTimeline,
    create_timeline,
    find_timeline,
    require_timeline,
)

SEG_SIZE = 1 << 20
TIMEOUT = 120.0
STEPS = ("CREATE_TIMELINE", "ACTIVATE_TIMELINE")
MEMBERS = 3

system_ids = itertools.count(1_000_000)


def new_primary() -> Primary:
    return Primary(
        server=ServerFacts(next(system_ids), 150018, SEG_SIZE),
        tli_history=TimelineHistory(1),
        flush_lsn=0x1234567,
        slot_lsn=0x1230000,
    )


class Members:
    """Three safekeepers, each behind its own proxy, and a primary they never connect to."""

    def __init__(self, safekeepers: list[SafekeeperProcess], proxies: list[TcpProxy]) -> None:
        self.safekeepers = safekeepers
        self.proxies = proxies
        self.addresses = [SafekeeperAddress.parse(proxy.address) for proxy in proxies]
        self.primary = new_primary()

    def attach(self) -> FoundTimeline:
        """The actions of a proposer before its first election. Raises WalProposerError."""
        members = survey(self.addresses)
        check_members(members)
        found = find_timeline(members, self.primary.server.system_id, None)
        return found or create_timeline(members, self.primary, None)

    def states(self) -> list[dict[TimelineId, str]]:
        """The states of this primary's timelines, on each member."""
        return [
            {
                timeline_id(status): status["state"]
                for status in safekeeper.status()["timelines"]
                if status["system_id"] == str(self.primary.server.system_id)
            }
            for safekeeper in self.safekeepers
        ]


@pytest.fixture(scope="module")
def safekeepers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SafekeeperProcess]]:
    root = tmp_path_factory.mktemp("creation")
    processes = [SafekeeperProcess(id, root / f"safekeeper-{id}") for id in (1, 2, 3)]
    with ExitStack() as stack:
        for process in processes:
            stack.callback(process.kill)
            process.start()
        for process in processes:
            process.wait_ready()
        yield processes


@pytest.fixture
def members(
    safekeepers: list[SafekeeperProcess], tcp_proxy: Callable[[str, int], TcpProxy]
) -> Members:
    proxies = []
    for safekeeper in safekeepers:
        host, _, port = safekeeper.address.rpartition(":")
        proxies.append(tcp_proxy(host, int(port)))
    return Members(safekeepers, proxies)


def interrupt_before(
    step: int, members: Members, monkeypatch: pytest.MonkeyPatch
) -> Callable[[], None]:
    """From now on: after that many commands, the next one's member is unreachable."""
    real, given = SafekeeperClient.command, itertools.count()

    def give(
        client: SafekeeperClient, name: str, options: Mapping[str, str] | None = None
    ) -> list[dict[str, str]]:
        if name in STEPS and next(given) == step:
            members.proxies[members.addresses.index(client.address)].cut()
        return real(client, name, options)

    monkeypatch.setattr(SafekeeperClient, "command", give)
    return monkeypatch.undo


@pytest.mark.parametrize("step", range(len(STEPS) * MEMBERS))
def test_an_interrupted_creation_never_votes_on_less_than_all_and_is_completed(
    members: Members, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    stop_interrupting = interrupt_before(step, members, monkeypatch)
    with pytest.raises(Unreachable):
        members.attach()
    stop_interrupting()
    states = [set(member.values()) for member in members.states()]
    created, activated = min(step, MEMBERS), max(0, step - MEMBERS)
    assert states == [
        {"active"} if number < activated else {"creating"} if number < created else set()
        for number in range(MEMBERS)
    ]

    for proxy in members.proxies:
        proxy.restore()
    found = members.attach()
    assert members.states() == [{found.timeline: "active"}] * MEMBERS
    assert members.attach() == found


def test_a_new_timeline_needs_all_members(members: Members) -> None:
    members.proxies[2].cut()
    with pytest.raises(Unreachable, match="a new timeline needs all safekeepers"):
        members.attach()
    assert members.states() == [{}] * MEMBERS


def test_a_member_that_lost_its_data_is_not_given_the_timeline_again(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither after a complete creation, nor if only one member had been activated."""
    for step in (len(STEPS) * MEMBERS, MEMBERS + 1):
        members.primary = new_primary()
        stop_interrupting = interrupt_before(step, members, monkeypatch)
        try:
            members.attach()
        except Unreachable:
            assert step == MEMBERS + 1
        stop_interrupting()
        for proxy in members.proxies:
            proxy.restore()
        (timeline,) = members.states()[0]
        loser = members.safekeepers[2]
        loser.terminate()
        shutil.rmtree(loser.data_dir / "timelines" / folder_name(timeline))
        loser.start()
        loser.wait_ready()

        found = members.attach()
        assert found.timeline == timeline
        assert members.states() == [{timeline: "active"}, {timeline: "active"}, {}]


def test_two_addresses_of_one_safekeeper_are_not_two_members(members: Members) -> None:
    members.addresses[2] = SafekeeperAddress.parse(members.safekeepers[0].address)
    with pytest.raises(WalProposerError, match="have the same id 1"):
        members.attach()
    assert members.states() == [{}] * MEMBERS


def test_an_unfinished_timeline_may_be_deleted_but_not_a_finished_one(members: Members) -> None:
    """Another creation of the same primary may have finished after the check."""
    found = members.attach()
    for safekeeper in members.safekeepers:
        with pytest.raises(WalProposerError, match="is active") as refusal:
            command(
                safekeeper.address, "DELETE_TIMELINE", **named(found.timeline), unfinished="true"
            )
        assert refusal.value.sqlstate == "55000"
    assert members.states() == [{found.timeline: "active"}] * MEMBERS


def test_a_deleted_timeline_is_never_created_again(members: Members) -> None:
    found = members.attach()
    for safekeeper in members.safekeepers:
        command(safekeeper.address, "DELETE_TIMELINE", **named(found.timeline))
        assert not (safekeeper.data_dir / "timelines" / folder_name(found.timeline)).exists()
    members.safekeepers[0].restart()  # the tombstone survives a restart
    assert members.states() == [{}] * MEMBERS
    with pytest.raises(WalProposerError, match="its name is never used again") as refusal:
        create_timeline(survey(members.addresses), members.primary, found.timeline)
    assert refusal.value.sqlstate == "42710"
    assert members.states() == [{}] * MEMBERS
    with pytest.raises(WalProposerError, match="no such timeline"):
        command(members.safekeepers[0].address, "DELETE_TIMELINE", **named(found.timeline))


# ---- two primaries


def test_two_primaries_share_the_safekeepers(
    cluster: QuorumCluster,
    ledger: Ledger,
    postgres_factory: Callable[..., Postgres],
    tmp_path: Path,
) -> None:
    """Each has its own timeline; deleting one does not affect the other."""
    other = postgres_factory("other", fresh=True, wal_seg_size=SEG_SIZE)
    addresses = [safekeeper.address for safekeeper in cluster.safekeepers]
    with ProposerProcess(
        other.dsn(), addresses, log_path=tmp_path / "proposer.log", configure=True
    ) as proposer:
        proposer.wait_streaming()
        wait_until(lambda: is_synchronous(other), TIMEOUT, "the other primary to rely on it")
        with Ledger(other.dsn(), clients=3, seed=secrets.randbits(32)) as other_ledger:
            other_ledger.wait_for_progress(200, TIMEOUT)
            ledger.wait_for_progress(200, TIMEOUT)
        assert other_ledger.verify().ok
        ledger.pause()
        ledger.wait_idle(TIMEOUT)
        assert ledger.verify().ok
        assert_same_wal(cluster, cluster.postgres, cluster.proposer.status())
        assert_same_wal(cluster, other, proposer.status())

        deleted = timeline_id(proposer.status())
        for address in addresses:
            command(address, "DELETE_TIMELINE", **named(deleted))
        wait_until(lambda: not proposer.status()["quorum"]["ok"], TIMEOUT, "it to be noticed")
        ledger.resume()
        ledger.wait_for_progress(200, TIMEOUT)
    assert ledger.verify().ok
    for safekeeper in cluster.safekeepers:
        assert "Traceback" not in safekeeper.log_text()


def is_synchronous(postgres: Postgres) -> bool:
    statement = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
    return bool(postgres.execute(statement))


def assert_same_wal(cluster: QuorumCluster, primary: Postgres, proposer: dict[str, Any]) -> None:
    """All safekeepers have this primary's WAL, byte for byte, in its timeline."""
    timeline = timeline_id(proposer)
    end_lsn = primary.flush_lsn()

    def all_have_it() -> bool:
        statuses = [s.timeline(timeline.timeline_id.hex()) for s in cluster.safekeepers]
        return all(status and Lsn.parse(status["flush_lsn"]) >= end_lsn for status in statuses)

    wait_until(all_have_it, TIMEOUT, "the safekeepers to have it all")
    copies = {s.name: s.data_dir / "timelines" / folder_name(timeline) for s in cluster.safekeepers}
    comparison = compare_wal({**copies, PRIMARY: primary.pg_wal}, end_lsn, SEG_SIZE)
    for holder in copies:
        begin_lsn, compared_lsn = comparison.range_of(holder)
        assert begin_lsn < compared_lsn == end_lsn


def test_a_frozen_safekeeper_delays_only_a_creation(members: Members) -> None:
    """A creation waits for it, because it needs all members."""
    found = members.attach()
    frozen = members.safekeepers[0]
    frozen.pause()
    try:
        begun = time.monotonic()
        answered, again = require_timeline(members.addresses, None, found.timeline)
        assert time.monotonic() - begun < LATE_SECONDS + CONNECT_TIMEOUT_SECONDS / 2
        assert again == found
        assert [member.error is None for member in answered] == [False, True, True]
        assert "did not answer within 1 s after a majority" in str(answered[0].error)
        begun = time.monotonic()
        assert [member.error is None for member in survey(members.addresses)] == [False, True, True]
        assert time.monotonic() - begun > CONNECT_TIMEOUT_SECONDS / 2
    finally:
        frozen.resume()


def test_a_late_member_may_be_the_only_one_that_has_the_timeline(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others have lost it, and have timelines of other primaries: no new one is created."""
    found, before = members.attach(), members.states()
    real = SafekeeperClient.timelines
    late, losers = members.safekeepers[0], members.addresses[1:]

    def timelines(client: SafekeeperClient) -> list[dict[str, Any]]:
        statuses = real(client)
        if client.address not in losers:
            return statuses
        return [status for status in statuses if timeline_id(status) != found.timeline]

    monkeypatch.setattr(SafekeeperClient, "timelines", timelines)
    upstream: Any = SimpleNamespace(primary=members.primary, close=lambda: None)
    row = SimpleNamespace(fetchone=lambda: (True,))
    questions = SimpleNamespace(execute=lambda *_: row, close=lambda: None)
    monkeypatch.setattr(PrimaryAddress, "connect", lambda _: questions)
    monkeypatch.setattr(service, "Upstream", lambda *_, **__: upstream)
    unmarked = PrimaryLog(members.primary.server, (), 0, 10, commits_wait=False)
    monkeypatch.setattr(service, "read_primary_log", lambda *_: unmarked)
    stopping: Any = SimpleNamespace(on_set=lambda _: None)
    config = ProposerConfig(PrimaryAddress("host=nowhere"), tuple(members.addresses))
    proposer = WalProposer(config, stopping)
    real_survey = service.survey

    def survey_then_resume(*arguments: Any) -> Any:
        asked = real_survey(*arguments)
        late.resume()  # in time for a second question
        return asked

    monkeypatch.setattr(service, "survey", survey_then_resume)
    late.pause()
    try:
        with pytest.raises(WalProposerError) as caught:
            proposer.prepare()
    finally:
        late.resume()
    assert "a new timeline needs all safekeepers" in str(caught.value)
    assert members.states() == before


def test_a_safekeeper_with_an_invalid_answer_is_named(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SafekeeperClient.identify

    def identify(client: SafekeeperClient) -> dict[str, str]:
        return {} if client.address == members.addresses[1] else real(client)

    monkeypatch.setattr(SafekeeperClient, "identify", identify)
    found = survey(members.addresses)
    assert [member.error is None for member in found] == [True, False, True]
    assert f"{members.addresses[1]} does not answer like a safekeeper" in str(found[1].error)
