"""`sk status`, `sk timeline list|show`, `sk elect` on a real cluster; each part fails once."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from datetime import datetime
from pathlib import Path
from typing import Any

from sk_command import assert_refused, sk, sk_json

from quorum_wal.cli.output import ExitCode
from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.processes import SK
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import Lsn

TIMEOUT = 120.0
#: The proposer closes the connection to a frozen safekeeper after 5 s.
SHORT_TIMEOUT = ("--safekeeper-conninfo", "connect_timeout=3")


def addresses(cluster: QuorumCluster) -> str:
    return ",".join(safekeeper.address for safekeeper in cluster.safekeepers)


def wait_verdict(cluster: QuorumCluster, condition: str, reason: str = "") -> dict[str, Any]:
    """Return the timeline in `sk status --json` when its verdict begins so and contains the reason;
    its members are in order."""

    def found() -> dict[str, Any] | None:
        (timeline,) = sk_json("status", "--safekeepers", addresses(cluster))["timelines"]
        verdict = timeline["verdict"]
        return timeline if verdict.startswith(condition) and reason in verdict else None

    timeline = wait_until(found, TIMEOUT, condition)
    assert [member["safekeeper_id"] for member in timeline["members"]] == [1, 2, 3]
    return timeline


def one_position(cluster: QuorumCluster) -> bool:
    """Whether the members have flushed what the proposer reports as committed, and no more. They
    are asked one after the other, and Postgres writes WAL between, at a checkpoint for example."""
    (timeline,) = sk_json("status", "--safekeepers", addresses(cluster))["timelines"]
    (proposer,) = timeline["proposers"]
    flushed = {member["status"]["flush_lsn"] for member in timeline["members"]}
    return bool(flushed == {proposer["page"]["commit_lsn"]})


def test_a_healthy_cluster_is_ok(cluster: QuorumCluster) -> None:
    cluster.postgres.execute("CREATE TABLE IF NOT EXISTS t (a int)")
    members = ("--safekeepers", addresses(cluster))
    text = sk("status", *members)
    assert text.returncode == 0, text.stdout
    assert "OK: commits proceed, 3 of 3 safekeepers" in text.stdout
    for safekeeper in cluster.safekeepers:
        assert safekeeper.address in text.stdout

    timeline = wait_verdict(cluster, "OK")
    (proposer,) = timeline["proposers"]
    assert proposer["http"] == cluster.proposer.http_address
    assert proposer["streams_to"] == [1, 2, 3]
    assert proposer["page"]["node_id"] == timeline["members"][0]["status"]["promised"]
    wait_until(lambda: one_position(cluster), TIMEOUT, "one position of members and proposer")
    report = sk_json("status", *members)["safekeepers"][0]
    assert report["disk"]["free_bytes"] > 0
    assert report["reachable"]

    check = ("check", "--primary", cluster.postgres.dsn(), *members)
    assert sk_json(*check)["passed"]


def test_timeline_list_and_show(cluster: QuorumCluster) -> None:
    members = ("--safekeepers", addresses(cluster))
    (listed,) = sk_json("timeline", "list", *members)
    name = f"{listed['tenant_id']}/{listed['timeline_id']}"
    row = sk("timeline", "list", *members)
    assert row.returncode == 0
    assert name in row.stdout
    assert "1 active, 2 active, 3 active" in row.stdout
    shown = sk_json("timeline", "show", name, *members)
    assert shown["timeline_id"] == listed["timeline_id"]
    everything = sk("timeline", "show", listed["timeline_id"], *members).stdout
    assert everything.count(listed["system_id"]) == 4  # the heading, and one row of each member
    unknown = sk("timeline", "show", "f" * 32, *members)
    assert_refused(unknown, 1, "no safekeeper that answers has timeline", "sk timeline list")


def test_one_safekeeper_lost_then_two(cluster: QuorumCluster) -> None:
    _, second, third = cluster.safekeepers
    third.kill()
    timeline = wait_verdict(cluster, "DEGRADED: commits proceed with 2 of 3 safekeepers")
    assert f"safekeeper 3 ({third.address}) is unreachable since 20" in timeline["verdict"]
    assert timeline["verdict"].endswith(": start it, or sk member replace 3 NEWADDR")
    assert timeline["members"][2]["state"] == "unreachable"
    assert "3 unreachable" in sk("timeline", "list", "--safekeepers", addresses(cluster)).stdout

    second.kill()
    timeline = wait_verdict(cluster, "BLOCKED: commits wait since 20")
    assert not timeline["commits_proceed"]
    assert f"safekeeper 2 ({second.address}) is unreachable since" in timeline["verdict"]
    assert f"safekeeper 3 ({third.address}) is unreachable since" in timeline["verdict"]
    assert "sk member replace" not in timeline["verdict"]  # it is refused without a quorum
    assert sk("status", "--safekeepers", addresses(cluster)).returncode == 3


def test_an_old_address_that_no_member_has(cluster: QuorumCluster) -> None:
    """It is not shown like a member that is down."""
    cluster.safekeepers[2].kill()
    wait_verdict(cluster, "DEGRADED")
    done = sk("status", "--safekeepers", f"{addresses(cluster)},127.0.0.1:1")
    rows = done.stdout.partition("\nsafekeeper ")[2].splitlines()
    assert rows[0].rstrip().endswith("problem")
    said = "no member of a timeline, remove it from --safekeepers (could not connect"
    assert [said in row for row in rows[1:]] == [False, False, False, True]


def test_a_frozen_safekeeper_does_not_delay_the_answer(cluster: QuorumCluster) -> None:
    cluster.safekeepers[0].pause()
    done = sk("status", "--safekeepers", addresses(cluster), *SHORT_TIMEOUT)
    assert done.returncode == 0
    # The proposer has not closed the connection yet.
    assert "DEGRADED: commits proceed with 2 of 3 safekeepers" in done.stdout
    row = rf"1 +{cluster.safekeepers[0].address} +unreachable +member"
    assert re.search(row, done.stdout)
    assert "timeout expired" in done.stdout
    cluster.safekeepers[0].resume()
    wait_verdict(cluster, "OK")


def test_a_frozen_quorum(cluster: QuorumCluster) -> None:
    """Before the proposer, which is connected to all, has noticed."""
    for safekeeper in cluster.safekeepers[:2]:
        safekeeper.pause()
    done = sk("status", "--safekeepers", addresses(cluster), *SHORT_TIMEOUT)
    assert "BLOCKED: commits wait: 1 of 3 safekeepers follow, 2 are needed" in done.stdout
    assert done.returncode == ExitCode.BLOCKED


def test_a_safekeeper_that_lost_its_data(cluster: QuorumCluster, tmp_path: Path) -> None:
    victim = cluster.safekeepers[1]
    victim.kill()
    victim.data_dir.rename(tmp_path / "data")
    victim.start()
    victim.wait_ready()
    timeline = wait_verdict(cluster, "DEGRADED")
    assert timeline["members"][1]["state"] == "lost its data"
    assert f"({victim.address}) lost its data: sk member replace 2 NEWADDR" in timeline["verdict"]
    victim.kill()
    victim.data_dir.rename(tmp_path / "emptied")
    (tmp_path / "data").rename(victim.data_dir)
    victim.start()
    wait_verdict(cluster, "OK")


def test_an_older_copy_of_a_safekeeper(cluster: QuorumCluster, tmp_path: Path) -> None:
    """The proposer asks it again, but less and less often: each time is a line in two logs."""
    victim, log = cluster.safekeepers[1], cluster.proposer.log_path
    older, newer = tmp_path / "older", tmp_path / "newer"
    victim.kill()
    shutil.copytree(victim.data_dir, older)
    victim.start()
    wait_verdict(cluster, "OK")
    cluster.postgres.execute("CREATE TABLE later AS SELECT generate_series(1, 1000)")
    wait_until(lambda: one_position(cluster), TIMEOUT, "all members to have it")
    victim.kill()
    victim.data_dir.rename(newer)
    older.rename(victim.data_dir)
    victim.start()
    timeline = wait_verdict(cluster, "DEGRADED", "lost its data")
    assert f"({victim.address}) lost its data: sk member replace 2 NEWADDR" in timeline["verdict"]

    def times() -> list[datetime]:
        lines = [line for line in log.read_text().splitlines() if "lost data: its log" in line]
        return [datetime.fromisoformat(line.split()[0]) for line in lines]

    wait_until(lambda: len(times()) >= 4, TIMEOUT, "the proposer to ask it four times")
    assert (times()[3] - times()[2]).total_seconds() >= 2
    victim.kill()
    victim.data_dir.rename(older)
    newer.rename(victim.data_dir)
    victim.start()
    wait_verdict(cluster, "OK")


def test_the_primary_is_down(cluster: QuorumCluster) -> None:
    """The proposer is connected to no safekeeper then; the safekeepers remember its address."""
    cluster.postgres.crash()
    # Until the proposer has tried again it has no reason to report.
    timeline = wait_verdict(cluster, "NO PRIMARY", "Connection refused")
    assert cluster.proposer.http_address in timeline["verdict"]
    assert timeline["verdict"].endswith("; start the primary")
    assert sk("status", "--safekeepers", addresses(cluster)).returncode == 3


def test_an_election_without_a_primary_fences_the_proposer(cluster: QuorumCluster) -> None:
    before = cluster.proposer.status()
    done = sk("elect", "--safekeepers", addresses(cluster))
    assert done.returncode == 0, done.stderr
    assert "commits proceed" not in done.stderr  # no commit is possible
    assert Lsn.parse(done.stdout.strip()) >= Lsn.parse(before["commit_lsn"])
    assert cluster.proposer.wait(TIMEOUT) == 5
    assert "sk: error: " in cluster.proposer.log_tail()
    assert "Traceback" not in cluster.proposer.log_tail()
    timeline = wait_verdict(cluster, "NO PROPOSER")
    assert ": run sk attach for its primary or, if" in timeline["verdict"]
    terms = {member["status"]["promised"]["term"] for member in timeline["members"]}
    assert terms == {before["node_id"]["term"] + 1}


def test_a_primary_is_not_promoted(cluster: QuorumCluster) -> None:
    """Nothing is done to a primary whose proposer runs; without one, only sk attach is needed."""
    promote = ("promote", "--standby", cluster.postgres.dsn(), "--safekeepers", addresses(cluster),
               "--http", "127.0.0.1:0")  # fmt: skip
    before = cluster.proposer.status()["node_id"]
    for options in ((), ("--dry-run",), ("--no-promote",), ("--no-attach",)):
        done = sk(*promote, *options)
        sentence = "the server is a primary already, and its proposer is attached (pid "
        assert_refused(done, 1, sentence, "sk attach")
        assert done.stdout == ""
    assert cluster.proposer.status()["node_id"] == before

    cluster.proposer.kill()
    for options in (("--no-promote",), ("--no-attach",)):
        done = sk(*promote, *options)
        sentence = "the server is a primary already, and no proposer is attached to it"
        assert_refused(done, 1, sentence, "Run sk attach")
    dry = sk(*promote, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "the server is a primary" in dry.stdout
    assert dry.stdout.splitlines()[-1] == "1. attach the proposer"


def test_no_election_without_a_quorum(cluster: QuorumCluster) -> None:
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.kill()
    promised = cluster.safekeepers[0].timeline()
    done = sk("elect", "--safekeepers", addresses(cluster))
    assert_refused(done, 4, "only 1 of 3 safekeepers can take part", "An election needs a quorum")
    now = cluster.safekeepers[0].timeline()
    assert promised is not None
    assert now is not None
    assert now["promised"] == promised["promised"]


def test_safekeepers_without_a_timeline(tmp_path: Path) -> None:
    with SafekeeperProcess(1, tmp_path / "safekeeper") as safekeeper:
        done = sk("status", "--safekeepers", safekeeper.address)
    assert done.returncode == ExitCode.BLOCKED
    assert "NO TIMELINE" in done.stdout


def test_no_safekeeper_answers() -> None:
    members = ("--safekeepers", "127.0.0.1:1,127.0.0.1:2")
    done = sk("status", *members)
    assert done.returncode == 4
    assert "UNKNOWN: no safekeeper answers" in done.stdout
    assert done.stdout.count("Connection refused") == 2
    assert_refused(sk("timeline", "list", *members), 4, "no safekeeper answers", "Start them")
    done = sk("elect", *members)
    assert_refused(done, 4, "could not connect to safekeeper 127.0.0.1:1", "Start it")


def test_a_primary_is_no_stranger_while_safekeepers_do_not_answer(cluster: QuorumCluster) -> None:
    """Else the advice would be to attach it."""
    servers = ("--primary", cluster.postgres.dsn())
    done = sk("status", "--safekeepers", "127.0.0.1:1,127.0.0.1:2", *servers)
    assert done.returncode == 4
    assert "unknown" in done.stdout
    assert "safekeepers that do not answer may have the timeline of its system" in done.stdout
    assert "stranger" not in done.stdout
    done = sk("status", "--safekeepers", f"{addresses(cluster)},127.0.0.1:1", *servers)
    assert "primary" in done.stdout
    assert "may have the timeline" not in done.stdout


def test_watch_draws_until_it_is_interrupted(cluster: QuorumCluster) -> None:
    watch = subprocess.Popen(
        [*SK, "status", "--watch", "--safekeepers", addresses(cluster)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "200"},
    )
    assert watch.stdout is not None
    try:
        while "OK: commits proceed" not in watch.stdout.readline():
            assert watch.poll() is None
        watch.send_signal(signal.SIGINT)
        _, errors = watch.communicate(timeout=TIMEOUT)
    finally:
        watch.kill()
        watch.communicate()
    assert errors == ""
    assert watch.returncode == 0
