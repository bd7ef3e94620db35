"""A daisy chain where every port has TLS and asks for a password: `--peer-conninfo`.

proposer -> 1, 2         2 -> 3, by a user of its own
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from reckoning import TIMEOUT, assert_nothing_lost
from secured_cluster import (
    PEER_PASSWORD,
    PEER_USER,
    PRIMARY_PASSWORD,
    Secrets,
    SecuredProposer,
    SecuredSafekeeper,
)
from sk_command import assert_refused, sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.ledger import Ledger
from quorum_wal.pg_fixtures.process_table import session_members
from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pg_server.binaries import PostgresBinaries

SEG_SIZE = 1 << 20
OPTION = "--peer-conninfo"


@pytest.fixture(scope="module")
def secured(
    pg_binaries: PostgresBinaries,
    initdb_template: Callable[[PostgresBinaries, int], Path],
    tmp_path_factory: pytest.TempPathFactory,
    secret_files: Secrets,
) -> Iterator[QuorumCluster]:
    root = tmp_path_factory.mktemp("secured") / "cluster"
    cluster = QuorumCluster(
        root,
        binaries=pg_binaries,
        wal_seg_size=SEG_SIZE,
        template=initdb_template(pg_binaries, SEG_SIZE),
    )
    cluster.safekeepers = [
        SecuredSafekeeper(
            id, root / f"safekeeper-{id}", secret_files, OPTION, peer_conninfo(secret_files)
        )
        for id in (1, 2, 3)
    ]
    cluster.proposer = SecuredProposer(cluster, secret_files, "--via", "3=2")
    with cluster:
        yield cluster


def peer_conninfo(files: Secrets, **changes: str) -> str:
    return files.conninfo(**{"user": PEER_USER, "passfile": str(files.passfile), **changes})


def third(cluster: QuorumCluster) -> tuple[str, int | None]:
    """Its state and source, as the proposer reports them."""
    peer = cluster.proposer.status()["safekeepers"][2]
    return peer["state"], peer["via"]


def test_a_chain_over_tls_proves_its_password(
    secured: QuorumCluster, ledger_of: Callable[[QuorumCluster], Ledger]
) -> None:
    """1 is down: commits need the WAL that 3 has from 2."""
    wait_until(lambda: third(secured) == ("chained", 2), TIMEOUT, "the chain")
    ledger = ledger_of(secured)
    secured.safekeepers[0].kill()
    ledger.wait_for_progress(100, TIMEOUT)
    assert third(secured) == ("chained", 2)
    secured.safekeepers[0].start()
    secured.safekeepers[0].wait_ready()
    assert_nothing_lost(secured, ledger)

    keeper = secured.safekeepers[2]
    (timeline,) = keeper.status()["timelines"]
    assert timeline["proposer"]["wal_from"] == secured.safekeepers[1].address
    seen = [keeper.log_text(), json.dumps(keeper.status())]
    seen += [Path(f"/proc/{each.pid}/cmdline").read_text() for each in session_members(keeper.pid)]
    assert not [text for text in seen if PEER_PASSWORD in text or "Traceback" in text]


@pytest.mark.parametrize(
    ("changes", "reason", "hint"),
    [
        ({"user": "stranger", "password": "a guess"}, "password authentication failed", "password"),
        ({"sslrootcert": "another CA"}, "certificate verify failed", "Correct sslrootcert"),
        ({"sslmode": "disable"}, "this server requires TLS", "sslmode"),
    ],
    ids=["wrong password", "unknown CA", "no TLS"],
)
def test_safekeepers_that_refuse_are_not_another_log(
    secured: QuorumCluster,
    secret_files: Secrets,
    tmp_path: Path,
    changes: dict[str, str],
    reason: str,
    hint: str,
) -> None:
    """The advice for another log, to drop the slot, would lose commits."""
    if changes.get("sslrootcert"):
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        changes = {"sslrootcert": str(tmp_path / "ca.pem")}
    dsn = secured.postgres.dsn(password=PRIMARY_PASSWORD)
    common = (
        *("--primary", dsn, "--safekeepers", ",".join(k.address for k in secured.safekeepers)),
        *("--safekeeper-conninfo", secret_files.conninfo(**changes)),
    )
    done = sk("attach", *common, "--http", "127.0.0.1:0")
    assert_refused(done, 4, reason, hint)
    assert "not all safekeepers could be asked" in done.stderr
    checked = sk("check", *common)
    assert checked.returncode == 3
    assert reason in checked.stdout
    assert hint in checked.stdout
    for text in (done.stderr, checked.stdout):
        assert "--drop-slot" not in text
        assert "Start it" not in text


def test_the_proposer_reports_why_there_is_no_steady_path(secured: QuorumCluster) -> None:
    """The primary's connection is plain; those to the safekeepers are encrypted."""
    said = r"none, the connection to safekeeper \S+ is encrypted"
    wait_until(
        lambda: re.fullmatch(said, secured.proposer.status()["steady_path"]), TIMEOUT, "its word"
    )
    assert re.search(f"steady_path='?{said}", secured.proposer.log_text())
    assert "this is no fault" in secured.proposer.log_text()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"passfile": "/dev/null"}, "no password supplied"),
        ({"user": "nobody"}, "no password supplied"),
        ({"password": "a guess"}, 'password authentication failed for user "chain"'),
        ({"user": "watcher", "password": "correct horse battery staple"}, "permission denied"),
        ({"sslrootcert": "another CA"}, "certificate verify failed"),
        ({"sslmode": "disable"}, "this server requires TLS"),
    ],
    ids=["no password", "no such user", "wrong password", "wrong role", "unknown CA", "no TLS"],
)
def test_a_refused_chain_is_reported_and_replaced_by_direct_streaming(
    secured: QuorumCluster,
    secret_files: Secrets,
    ledger_of: Callable[[QuorumCluster], Ledger],
    tmp_path: Path,
    changes: dict[str, str],
    why: str,
) -> None:
    if changes.get("sslrootcert"):
        trustme.CA().cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        changes = {**changes, "sslrootcert": str(tmp_path / "ca.pem")}
    keeper = secured.safekeepers[2]
    at, said = keeper.program.index(OPTION) + 1, len(keeper.log_text())
    before = keeper.program[at]
    keeper.program[at] = peer_conninfo(secret_files, **changes)
    try:
        start_anew(secured)
        wait_until(lambda: why in keeper.log_text()[said:], TIMEOUT, "the chain to end")
        wait_until(lambda: third(secured) == ("streaming", None), TIMEOUT, "3 to be streamed to")
        ledger = ledger_of(secured)
        ledger.wait_for_progress(20, TIMEOUT)
        assert_nothing_lost(secured, ledger)
        assert "a guess" not in keeper.log_text()
        assert "Traceback" not in keeper.log_text()
    finally:
        keeper.program[at] = before
        start_anew(secured)


def start_anew(cluster: QuorumCluster) -> None:
    """Start the third safekeeper with its options, and a proposer that has tried no chain yet."""
    cluster.safekeepers[2].restart()
    cluster.proposer.kill()
    cluster.proposer.start()
    cluster.proposer.wait_streaming(TIMEOUT)
