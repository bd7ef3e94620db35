"""Whether commits wait for the quorum, as `sk status --primary` and `sk check` report it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from altered_setting import altered
from sk_command import sk
from stock_clients import WalReceiverProcess

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0
NAMES = "synchronous_standby_names"
WALSENDERS = "SELECT pid FROM pg_stat_replication"
COMMIT = "SELECT pg_logical_emit_message(true, 'a', 'b')"


def addresses(cluster: QuorumCluster) -> str:
    return ",".join(safekeeper.address for safekeeper in cluster.safekeepers)


def status(cluster: QuorumCluster, *more: str, dsn: str = "") -> tuple[int, dict[str, Any]]:
    """The exit code and the output of `sk status --primary`."""
    primary = ("--primary", dsn or cluster.postgres.dsn())
    done = sk("status", "--safekeepers", addresses(cluster), *primary, *more, "--json")
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def wait_verdict(cluster: QuorumCluster, beginning: str, code: int, dsn: str = "") -> str:
    """Return the verdict when it begins so and the exit code is right."""

    def found() -> str | None:
        exit_code, report = status(cluster, dsn=dsn)
        (timeline,) = report["timelines"]
        verdict = str(timeline["verdict"])
        return verdict if verdict.startswith(beginning) and exit_code == code else None

    return wait_until(found, TIMEOUT, beginning)


def findings(cluster: QuorumCluster, dsn: str = "") -> dict[str, tuple[str, str]]:
    """The findings of `sk check` that are not ok: the level and the text."""
    primary = ("--primary", dsn or cluster.postgres.dsn())
    done = sk("check", *primary, "--safekeepers", addresses(cluster), "--json")
    report = json.loads(done.stdout)
    assert done.returncode == (0 if report["passed"] else 3)
    unwell = [f for f in report["findings"] if f["level"] != "ok"]
    return {finding["check"]: (finding["level"], finding["text"]) for finding in unwell}


@contextmanager
def receiver(cluster: QuorumCluster, directory: Path, name: str) -> Iterator[WalReceiverProcess]:
    """`pg_receivewal --synchronous` with that name, streaming directly from the primary."""
    postgres = cluster.postgres
    conninfo = postgres.dsn(application_name=name)
    with WalReceiverProcess(
        postgres.binaries, directory, conninfo, "--synchronous", "--status-interval=1"
    ) as process:
        streams = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND pid <> %s"
        ((ours,),) = postgres.execute(
            "SELECT coalesce(max(active_pid), 0) FROM pg_replication_slots"
        )
        process.wait_until(
            lambda: bool(postgres.execute(streams, (ours,))), TIMEOUT, "it to stream"
        )
        yield process


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("", "empty: commits return with one copy, on the primary"),
        (
            "ANY 1 (other, s2)",
            "it does not include walproposer, so commits do not wait for the quorum",
        ),
    ],
)
def test_a_setting_that_does_not_name_the_proposer(
    cluster: QuorumCluster, value: str, text: str
) -> None:
    postgres = cluster.postgres
    with altered(postgres, NAMES, value):
        verdict = wait_verdict(cluster, "UNPROTECTED: commits return without the quorum", 3)
        assert text in verdict
        assert f"ALTER SYSTEM SET {NAMES} = 'walproposer'" in verdict
        level, found = findings(cluster)[NAMES]
        assert level == "FAIL"
        assert text in found
    wait_verdict(cluster, "OK", 0)
    assert NAMES not in findings(cluster)


@pytest.mark.parametrize("value", ['"WalProposer"', "ANY 1 (walproposer)"])
def test_other_spellings_of_the_right_setting(cluster: QuorumCluster, value: str) -> None:
    with altered(cluster.postgres, NAMES, value):
        cluster.postgres.execute(COMMIT)
        wait_verdict(cluster, "OK", 0)
        assert NAMES not in findings(cluster)


def test_another_standby_that_may_confirm_instead(cluster: QuorumCluster, tmp_path: Path) -> None:
    """A risk while it is not connected; without the quorum when it is connected."""
    with altered(cluster.postgres, NAMES, "ANY 1 (walproposer, other)"):
        assert "names others: other" in wait_verdict(cluster, "DEGRADED", 0)
        assert findings(cluster)[NAMES][0] == "warn"
        with receiver(cluster, tmp_path / "other", "other"):
            verdict = wait_verdict(cluster, "UNPROTECTED", 3)
            assert '"other" (pid ' in verdict
            assert findings(cluster)[NAMES][0] == "FAIL"
    # FIRST: which of two standbys "*" alone would choose depends on the order of their connections.
    with (
        altered(cluster.postgres, NAMES, "FIRST 1 (walproposer, *)"),
        receiver(cluster, tmp_path / "any", "any"),
    ):
        assert "names others: *" in wait_verdict(cluster, "DEGRADED", 0)


def come_first(cluster: QuorumCluster) -> None:
    """Of two standbys with one name, Postgres uses the walsender with the lower number."""
    cluster.proposer.kill()
    wait_until(lambda: not cluster.postgres.execute(WALSENDERS), TIMEOUT, "no walsender")
    cluster.start()


def test_another_client_with_the_name_of_the_proposer(
    cluster: QuorumCluster, tmp_path: Path
) -> None:
    """Beside the proposer it waits for its turn; without the proposer it confirms commits."""
    postgres = cluster.postgres
    come_first(cluster)
    with receiver(cluster, tmp_path / "seat", "walproposer"):
        verdict = wait_verdict(cluster, "DEGRADED", 0)
        assert "is not known as our proposer: without the proposer it would confirm" in verdict
        assert '"walproposer" (pid ' in verdict
        cluster.proposer.kill()
        postgres.execute(COMMIT)  # returns, although no safekeeper has it
        verdict = wait_verdict(cluster, "UNPROTECTED", 3)
        # The killed proposer's walsender ends when it notices.
        wait_until(lambda: len(postgres.execute(WALSENDERS)) == 1, TIMEOUT, "one walsender")
        ((pid,),) = postgres.execute(WALSENDERS)
        assert f'"walproposer" (pid {pid}, role postgres, from 127.0.0.1)' in verdict
        assert f"SELECT pg_terminate_backend({pid});" in verdict
        assert "NO PROPOSER" in verdict
        level, text = findings(cluster)[NAMES]
        assert level == "FAIL"
        assert "which is not our proposer, confirms commits without the quorum" in text
    cluster.start()
    wait_verdict(cluster, "OK", 0)


def wait_own_verdict(cluster: QuorumCluster, beginning: str) -> str:
    """Return the verdict of `sk status` without --primary, from the proposer's own checks."""

    def found() -> str | None:
        done = sk("status", "--safekeepers", addresses(cluster), "--json")
        (timeline,) = json.loads(done.stdout)["timelines"]
        assert done.returncode == (0 if timeline["is_well"] else 3)
        verdict = str(timeline["verdict"])
        return verdict if verdict.startswith(beginning) else None

    return wait_until(found, TIMEOUT, beginning)


def protected(cluster: QuorumCluster) -> bool:
    """The value of the proposer's metric."""
    _, text = http_get(cluster.proposer.http_address, "/metrics")
    return "sk_proposer_commits_protected 1.0" in text


def wait_noticed(cluster: QuorumCluster, *, is_protected: bool) -> None:
    """It asks the primary every few seconds; each `sk status` meanwhile would be a process."""
    wait_until(lambda: protected(cluster) is is_protected, TIMEOUT, "the proposer to notice it")


def test_the_proposer_notices_it_too(cluster: QuorumCluster, tmp_path: Path) -> None:
    """An emptied setting, and another client that connected before the proposer."""
    postgres, proposer = cluster.postgres, cluster.proposer
    wait_noticed(cluster, is_protected=True)
    with altered(postgres, NAMES, ""):
        wait_noticed(cluster, is_protected=False)
        verdict = wait_own_verdict(cluster, "UNPROTECTED: commits return without the quorum")
        assert f"{NAMES}: empty: commits return with one copy, on the primary" in verdict
        assert "COMMITS RETURN WITHOUT THE QUORUM" in proposer.log_text()
    wait_noticed(cluster, is_protected=True)
    wait_own_verdict(cluster, "OK")
    proposer.kill()
    with receiver(cluster, tmp_path / "seat", "walproposer") as intruder:
        proposer.start()
        verdict = wait_own_verdict(cluster, "UNPROTECTED")
        assert "which is not our proposer, confirms commits without the quorum" in verdict
        intruder.interrupt()
        wait_noticed(cluster, is_protected=True)
        wait_own_verdict(cluster, "OK")


def test_synchronous_commit_of_the_server(cluster: QuorumCluster) -> None:
    with altered(cluster.postgres, "synchronous_commit", "local"):
        verdict = wait_verdict(cluster, "UNPROTECTED", 3)
        assert 'synchronous_commit: "local": commits return before the quorum' in verdict
        assert findings(cluster)["synchronous_commit"][0] == "FAIL"


def test_synchronous_commit_of_a_role_is_reported_for_the_role(cluster: QuorumCluster) -> None:
    """Also if the role itself asks; the value of the server is what matters for all clients."""
    postgres = cluster.postgres
    postgres.execute("ALTER ROLE postgres SET synchronous_commit = 'False'")
    try:
        verdict = wait_verdict(cluster, "DEGRADED: commits proceed, 3 of 3 safekeepers", 0)
        assert '"False" by ALTER ROLE postgres: such commits return before' in verdict
        assert findings(cluster)["synchronous_commit"][0] == "FAIL"
    finally:
        postgres.execute("ALTER ROLE postgres RESET synchronous_commit")


def test_a_role_that_may_not_see_it_says_so(cluster: QuorumCluster) -> None:
    postgres = cluster.postgres
    postgres.execute("DROP ROLE IF EXISTS blind; CREATE ROLE blind LOGIN REPLICATION")
    dsn = postgres.dsn(user="blind")
    wait_verdict(cluster, "OK", 0, dsn)
    found = findings(cluster, dsn)
    assert found["commits"] == ("warn", "role blind may not see which commits wait")
    assert NAMES not in found


def test_without_walsenders_no_commit_waits(cluster: QuorumCluster) -> None:
    """Postgres' SyncRepRequested(): the primary answers queries, but cannot be streamed from."""
    postgres = cluster.postgres
    postgres.configure(max_wal_senders=0)
    try:
        postgres.restart()
        postgres.execute(COMMIT)  # returns at once
        verdict = wait_verdict(cluster, "UNPROTECTED", 3)
        assert "max_wal_senders: 0: commits return with one copy, on the primary" in verdict
        assert "max_wal_senders = '10'; then restart the primary" in verdict
        _, report = status(cluster)
        (server,) = report["primaries"]
        assert server["role"] == "primary"
        assert server["tli"] == 1
        found = findings(cluster)
        assert found["max_wal_senders"][0] == "FAIL"
        assert "role" not in found  # pg_hba.conf is correct
        assert NAMES not in found
    finally:
        postgres.stop()
        postgres.configure(max_wal_senders=None)
    cluster.start()
    wait_verdict(cluster, "OK", 0)
