"""A primary belongs to one log: other safekeepers never take over its commits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from threading import Barrier, get_ident
from typing import Any

import psycopg
import pytest
from shared_cluster import SharedCluster
from sk_command import Done, assert_refused, sk

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.postgres import Postgres
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.walproposer.errors import Refusal
from quorum_wal.walproposer.primary import log_marker
from quorum_wal.walproposer.primary.log_marker import mark_log, marker_name, read_markers
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

TIMEOUT = 120.0
LEAVE = "sk detach --drop-slot"
WARNED = "a new log begins on Postgres timeline"
SLOTS = "SELECT slot_name::text, restart_lsn IS NULL FROM pg_replication_slots ORDER BY 1"


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SafekeeperProcess]]:
    """Three safekeepers outside the cluster."""
    root = tmp_path_factory.mktemp("others")
    with ExitStack() as stack:
        keepers = [
            stack.enter_context(SafekeeperProcess(i, root / f"safekeeper-{i}")) for i in (1, 2, 3)
        ]
        yield keepers


@pytest.fixture(autouse=True)
def empty_others(others: list[SafekeeperProcess]) -> Iterator[None]:
    yield
    for name in timelines_of(others):
        done = sk("timeline", "delete", name, "--safekeepers", joined(others), "--yes")
        assert done.returncode == 0, done.stderr


def joined(keepers: list[SafekeeperProcess]) -> str:
    return ",".join(keeper.address for keeper in keepers)


def timelines_of(keepers: list[SafekeeperProcess]) -> set[str]:
    return {t["timeline_id"] for keeper in keepers for t in keeper.status()["timelines"]}


def timeline_of(cluster: QuorumCluster) -> TimelineId:
    return TimelineId(bytes(16), bytes.fromhex(cluster.proposer.status()["timeline_id"]))


def attach(postgres: Postgres, keepers: str, *more: object) -> Done:
    http = ("--http", "127.0.0.1:0")
    return sk("attach", "--primary", postgres.dsn(), "--safekeepers", keepers, *http, *more)


def failures(postgres: Postgres, keepers: str, *more: str) -> dict[str, str]:
    """The failures of sk check."""
    done = sk("check", "--primary", postgres.dsn(), "--safekeepers", keepers, "--json", *more)
    findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
    return {f["check"]: f["text"] for f in findings if f["level"] == "FAIL"}


def test_empty_safekeepers_do_not_replace_a_live_quorum(
    cluster: QuorumCluster, ledger: Ledger, others: list[SafekeeperProcess]
) -> None:
    postgres, name = cluster.postgres, marker_name(timeline_of(cluster))
    slots = postgres.execute(SLOTS)
    assert slots == [(name, True), ("walproposer", False)]
    problem = f"the primary belongs to log {timeline_of(cluster).timeline_id.hex()}"
    for more in ((), ("--timeline", "ab" * 16)):
        assert_refused(attach(postgres, joined(others), *more), 1, problem, LEAVE)
    create = ("timeline", "create", "--primary", postgres.dsn(), "--safekeepers", joined(others))
    already = problem.replace("belongs", "already belongs")
    assert_refused(sk(*create), 1, already, LEAVE)
    assert problem in failures(postgres, joined(others))["log of the primary"]
    own = str(timeline_of(cluster))  # its own name does not make other safekeepers its members
    assert_refused(attach(postgres, joined(others), "--timeline", own), 1, problem, LEAVE)

    assert timelines_of(others) == set()
    assert postgres.execute(SLOTS) == slots
    ledger.wait_for_progress(50, TIMEOUT)
    assert cluster.proposer.state == "streaming"
    assert failures(postgres, joined(cluster.safekeepers)) == {}
    ledger.pause()
    ledger.wait_idle(TIMEOUT)
    assert ledger.verify().ok


def test_a_missing_timeline_is_not_created_for_a_primary_with_a_log(cluster: QuorumCluster) -> None:
    """The primary's log exists, under another name than the given one."""
    postgres, keepers = cluster.postgres, joined(cluster.safekeepers)
    before, ours = timelines_of(cluster.safekeepers), timeline_of(cluster).timeline_id.hex()
    problem = f"belongs to log {ours}, which these safekeepers have: --timeline names another"
    wanted = ("--timeline", "ab" * 16)
    assert_refused(attach(postgres, keepers, *wanted), 1, problem, "Leave out --timeline")
    assert problem in failures(postgres, keepers, *wanted)["log of the primary"]
    assert timelines_of(cluster.safekeepers) == before


def test_a_member_that_is_silent_may_have_its_log(
    cluster: QuorumCluster, others: list[SafekeeperProcess]
) -> None:
    keepers = f"{joined(others[:2])},127.0.0.1:1"
    done = attach(cluster.postgres, keepers)
    assert_refused(done, 4, "not all safekeepers could be asked whether they have it", "Start it")
    checked = failures(cluster.postgres, keepers)["log of the primary"]
    assert "could be asked" in checked
    assert LEAVE not in sk("check", "--primary", cluster.postgres.dsn(), "--safekeepers",
                           keepers).stdout  # fmt: skip
    assert timelines_of(others) == set()


def test_another_log_of_the_same_system_is_not_its_log(
    cluster: QuorumCluster, others: list[SafekeeperProcess]
) -> None:
    postgres = cluster.postgres
    control = postgres.control_data()
    facts = (
        *("--system-id", control["Database system identifier"], "--pg-version"),
        *(postgres.execute("SHOW server_version_num")[0][0], "--start-lsn", "0/1000000"),
        *("--wal-seg-size", control["Bytes per WAL segment"]),
    )
    done = sk("timeline", "create", "--safekeepers", joined(others), *facts)
    assert done.returncode == 0, done.stderr
    theirs = done.stdout.strip()
    slots = postgres.execute(SLOTS)
    done = attach(postgres, joined(others))
    ours = timeline_of(cluster).timeline_id.hex()
    assert_refused(done, 1, f"the primary belongs to log {ours}, not to {theirs}", LEAVE)
    assert f"not to {theirs}" in failures(postgres, joined(others))["log of the primary"]
    mixed = [cluster.safekeepers[0], *others[1:]]
    assert_refused(attach(postgres, joined(mixed)), 1, "the safekeepers have 2 timelines", "Name")
    assert postgres.execute(SLOTS) == slots


def test_a_set_that_overlaps(
    cluster: QuorumCluster, ledger: Ledger, others: list[SafekeeperProcess]
) -> None:
    """A safekeeper that has the log leads to its other members. Safekeepers that only have the same
    ids are no members, and get nothing."""
    mixed = [cluster.safekeepers[0].address, *(other.address for other in others[1:])]
    timeline, term = timeline_of(cluster), cluster.proposer.term
    with ProposerProcess(
        cluster.postgres.dsn(), mixed, log_path=cluster.root / "mixed.log"
    ) as proposer:
        proposer.wait_streaming_above(term, TIMEOUT)
        ledger.wait_for_progress(50, TIMEOUT)
        status = proposer.status()
        assert status["timeline_id"] == timeline.timeline_id.hex()
        addresses = {keeper.address for keeper in cluster.safekeepers}
        assert {peer["address"] for peer in status["safekeepers"]} == addresses
        assert proposer.log_text().count("not a member of the timeline") == 2
    assert timelines_of(others) == set()
    ledger.pause()
    cluster.proposer.kill()
    cluster.start(TIMEOUT)
    ledger.resume()
    ledger.wait_for_progress(50, TIMEOUT)


def test_a_primary_without_a_marker_whose_commits_wait(
    cluster: QuorumCluster, others: list[SafekeeperProcess]
) -> None:
    """The state after an older release, a clone or a promotion by hand."""
    postgres, name = cluster.postgres, marker_name(timeline_of(cluster))
    drop = f"SELECT pg_drop_replication_slot('{name}')"
    postgres.execute(drop, options="-c synchronous_commit=local")
    done = attach(postgres, joined(others))
    assert_refused(done, 1, "commits of the primary wait for a proposer", "sk timeline create")
    assert "wait for a proposer" in failures(postgres, joined(others))["timeline"]
    assert timelines_of(others) == set()

    cluster.proposer.terminate()
    cluster.start(TIMEOUT)
    assert postgres.execute(SLOTS) == [(name, True), ("walproposer", False)]


def test_a_new_log_of_a_server_that_was_promoted_is_warned_of(
    cluster: QuorumCluster, others: list[SafekeeperProcess], tmp_path: Path
) -> None:
    """Nothing on a standby that was promoted by hand names the cluster's log, if its commits do not
    wait. It looks like a server that had failed over before it had any log."""
    with cluster.postgres.base_backup(tmp_path / "copy", "--write-recovery-conf") as copy:
        copy.execute("ALTER SYSTEM RESET synchronous_standby_names")
        copy.execute("SELECT pg_reload_conf()")
        names = "SHOW synchronous_standby_names"
        wait_until(lambda: copy.execute(names) == [("",)], TIMEOUT, "its commits not to wait")
        assert copy.execute("SELECT pg_promote(true, 60)") == [(True,)]
        addresses = [keeper.address for keeper in others]
        log_path = tmp_path / "proposer.log"
        with ProposerProcess(copy.dsn(), addresses, log_path=log_path) as proposer:
            proposer.wait_streaming(TIMEOUT)
            assert WARNED in proposer.log_text()
            assert "sk promote" in proposer.log_text()
            proposer.terminate()
            proposer.start()  # with its present log
            proposer.wait_streaming(TIMEOUT)
            assert proposer.log_text().count(WARNED) == 1
            proposer.terminate()


@pytest.mark.parametrize("steps_together", [1, 2])
def test_two_at_once_leave_no_more_than_one(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch, steps_together: int
) -> None:
    """Both see no marker, and write one. With 2, both have written theirs when they check again,
    and both remove it."""
    logs = [TimelineId(bytes(16), sign * 16) for sign in (b"\xab", b"\xcd")]
    together, looks = Barrier(len(logs), timeout=TIMEOUT), Counter[int]()

    def look(connection: psycopg.Connection) -> tuple[str, ...]:
        looks[get_ident()] += 1
        if looks[get_ident()] > steps_together:
            return read_markers(connection)
        together.wait()
        found = read_markers(connection)
        together.wait()
        return found

    def mark(log: TimelineId) -> str:
        with closing(PrimaryAddress(postgres.dsn()).connect()) as connection:
            try:
                mark_log(connection, log)
            except Refusal as refusal:
                return str(refusal)
            return ""

    monkeypatch.setattr(log_marker, "read_markers", look)
    with ThreadPoolExecutor(len(logs)) as threads:
        refusals = list(threads.map(mark, logs))
    assert set(looks.values()) == {2}
    assert all("belongs to log" in refusal for refusal in refusals if refusal)
    left = [marker_name(log) for log, no in zip(logs, refusals, strict=True) if not no]
    assert [name for name, _ in postgres.execute(SLOTS)] == left
    assert len(left) <= 2 - steps_together


def test_the_earlier_one_of_two_stays(
    cluster: QuorumCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one checked earlier, saw no marker, and removes its own again."""
    slots = cluster.postgres.execute(SLOTS)
    found = iter([()])
    monkeypatch.setattr(
        log_marker, "read_markers", lambda connection: next(found, read_markers(connection))
    )
    with (
        closing(PrimaryAddress(cluster.postgres.dsn()).connect()) as connection,
        pytest.raises(Refusal, match="belongs to log"),
    ):
        mark_log(connection, TimelineId(bytes(16), b"\xcd" * 16))
    assert next(found, None) is None
    assert cluster.postgres.execute(SLOTS) == slots


def test_a_log_can_be_left_permanently(
    shared_cluster: SharedCluster[QuorumCluster],
    cluster: QuorumCluster,
    others: list[SafekeeperProcess],
) -> None:
    postgres, old = cluster.postgres, timeline_of(cluster)
    detach = ("detach", "--primary", postgres.dsn(), "--drop-slot")
    assert_refused(sk(*detach), 1, 'slot "walproposer" is active', "stop the proposer")
    assert postgres.execute(SLOTS)[0] == (marker_name(old), True)
    cluster.proposer.terminate()
    done = sk(*detach)
    assert done.returncode == 0, done.stderr
    assert f'"{marker_name(old)}" was dropped' in done.stdout
    assert postgres.execute(SLOTS) == []
    log_path = cluster.root / "proposer-of-others.log"
    addresses = [keeper.address for keeper in others]
    with ProposerProcess(postgres.dsn(), addresses, log_path=log_path, configure=True) as proposer:
        proposer.wait_streaming(TIMEOUT)
        (name,) = timelines_of(others)
        assert name != old.timeline_id.hex()
        assert postgres.execute(SLOTS)[0] == (f"sk_log_{name}", True)
        assert WARNED not in proposer.log_text(), "it was never promoted"
        proposer.terminate()
    shared_cluster.discard()  # it has left its log
