"""Parts that hang with open connections: the verdict of `sk status` depends on what advances."""

from __future__ import annotations

import ctypes
import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pending_commit import PendingCommit
from sk_command import sk

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.http_status import http_get
from quorum_wal.pg_fixtures.process_table import family, signal_entry
from quorum_wal.pg_fixtures.waiting import wait_until

TIMEOUT = 120.0

# Linux's ptrace(2), waitpid(2).
PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WAIT_ALL = 0x40000000


def status(cluster: QuorumCluster, *more: str) -> tuple[int, str, dict[str, Any]]:
    """The exit code, the verdict, and the whole report."""
    addresses = ",".join(safekeeper.address for safekeeper in cluster.safekeepers)
    done = sk("status", "--safekeepers", addresses, *more, "--json")
    report = json.loads(done.stdout)
    (timeline,) = report["timelines"]
    return done.returncode, timeline["verdict"], report


def wait_verdict(cluster: QuorumCluster, beginning: str, code: int, *more: str) -> str:
    def found() -> str | None:
        exit_code, verdict, _ = status(cluster, *more)
        return verdict if verdict.startswith(beginning) and exit_code == code else None

    return wait_until(found, TIMEOUT, beginning)


def metrics(address: str) -> dict[str, float]:
    """The metrics of one timeline, or of the process, by name."""
    _, text = http_get(address, "/metrics")
    lines = [line.rpartition(" ") for line in text.splitlines() if not line.startswith("#")]
    return {name.partition("{")[0]: float(value) for name, _, value in lines}


@contextmanager
def one_thread_stopped(tid: int) -> Iterator[None]:
    """The thread executes no instruction; the other threads of its process continue. Called from
    one thread only."""
    libc = ctypes.CDLL(None, use_errno=True)

    def ptrace(request: int) -> None:
        if libc.ptrace(request, tid, None, None) == -1:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    ptrace(PTRACE_SEIZE)
    try:
        ptrace(PTRACE_INTERRUPT)
        os.waitpid(tid, WAIT_ALL)
        yield
    finally:
        ptrace(PTRACE_DETACH)


def test_a_hung_proposer(cluster: QuorumCluster) -> None:
    """SIGSTOP: every connection stays open, nothing advances, commits wait."""
    postgres, primary = cluster.postgres, ("--primary", cluster.postgres.dsn())
    wait_verdict(cluster, "OK", 0, *primary)
    cluster.proposer.pause()
    pending = PendingCommit(postgres)
    pending.wait_blocked(TIMEOUT)
    verdict = wait_verdict(cluster, "HUNG", 3)
    assert f"({cluster.proposer.http_address}) is connected to 3 of 3 safekeepers, but" in verdict
    assert "commits wait: restart it" in verdict
    verdict = wait_verdict(cluster, "HUNG", 3, *primary)
    assert "; 1 commit waits, the longest for " in verdict
    silent = metrics(cluster.safekeepers[0].http_address)["sk_timeline_proposer_silent_seconds"]
    assert silent > 5.0
    cluster.proposer.resume()
    pending.wait_returned(TIMEOUT)
    wait_verdict(cluster, "OK", 0, *primary)
    assert metrics(cluster.safekeepers[0].http_address)["sk_timeline_proposer_silent_seconds"] < 5.0


def test_a_proposer_whose_event_loop_hangs(cluster: QuorumCluster) -> None:
    """Its other threads continue, and its status page answers."""
    with one_thread_stopped(cluster.proposer.pid):
        pending = PendingCommit(cluster.postgres)
        verdict = wait_verdict(cluster, "HUNG", 3)
        assert f"({cluster.proposer.http_address}) has made no progress for " in verdict
        assert "commits wait: restart it" in verdict
        code, reason = http_get(cluster.proposer.http_address, "/healthz")
        assert code == 503
        assert "the event loop has been stalled for " in reason
        assert metrics(cluster.proposer.http_address)["sk_proposer_stalled_seconds"] > 5.0
        assert not pending.has_returned
    pending.wait_returned(TIMEOUT)
    wait_verdict(cluster, "OK", 0)


def test_a_hung_primary(cluster: QuorumCluster) -> None:
    processes = family(cluster.postgres.pid)
    assert len(processes) > 1
    try:
        for process in processes:
            signal_entry(process, signal.SIGSTOP)
        verdict = wait_verdict(cluster, "HUNG", 3)
        assert verdict.startswith("HUNG: the primary (")
        assert "silent for " in verdict
        assert "look at the primary" in verdict
        code, reason = http_get(cluster.proposer.http_address, "/healthz")
        assert (code, "the primary has been silent" in reason) == (503, True)
        silent = metrics(cluster.proposer.http_address)["sk_proposer_primary_silent_seconds"]
        assert silent > 5.0
    finally:
        for process in reversed(processes):
            signal_entry(process, signal.SIGCONT)
    wait_verdict(cluster, "OK", 0)
    PendingCommit(cluster.postgres).wait_returned(TIMEOUT)


def test_a_quorum_of_hung_safekeepers(cluster: QuorumCluster) -> None:
    """They are connected until the proposer closes the silent connections."""
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.pause()
    pending = PendingCommit(cluster.postgres)
    pending.wait_blocked(TIMEOUT)
    patience = ("--safekeeper-conninfo", "connect_timeout=2")
    verdict = wait_verdict(cluster, "BLOCKED: commits wait", 3, *patience)
    assert (
        f"safekeeper 2 ({cluster.safekeepers[1].address})" in verdict
        or "although a quorum is connected" in verdict
    )
    for safekeeper in cluster.safekeepers[1:]:
        safekeeper.resume()
    pending.wait_returned(TIMEOUT)
    wait_verdict(cluster, "OK", 0)
