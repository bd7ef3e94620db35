"""The modules that a proposer imports before it leads. Commits wait for each of these imports."""

from __future__ import annotations

import subprocess

import pytest

from quorum_wal.pg_fixtures.ports import free_port
from quorum_wal.pg_fixtures.processes import SK

#: Modules of the status page, of coloured logs, of --qsync, of --lock and of stopping a server.
NOT_NEEDED = {
    "aiohttp",
    "jinja2",
    "cluster",
    "prometheus_client",
    "http.server",
    "urllib.request",
    "rich.console",
    "quorum_wal.access.access",
    "quorum_wal.qsync",
    "quorum_wal.walproposer.qsync.coordination",
    "quorum_wal.walproposer.qsync.limbo_events",
    "quorum_wal.walproposer.qsync.verdict_server",
    "quorum_wal.walproposer.locks.etcd_lock",
    "obstore",
    "quorum_wal.pgwire.connection",
}


def imported(*arguments: str) -> set[str]:
    """All modules that a run of `sk` has imported."""
    python, *words = SK
    done = subprocess.run(
        [python, "-X", "importtime", *words, *arguments], capture_output=True, text=True
    )
    assert "could not connect" in done.stderr
    lines = (line for line in done.stderr.splitlines() if line.startswith("import time:"))
    return {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize("words", [("attach", "--primary"), ("promote", "--standby")])
def test_a_proposer_imports_no_more_than_it_needs_to_lead(words: tuple[str, ...]) -> None:
    """No server listens, so the command ends at its first connection."""
    port = free_port()
    members = ("--safekeepers", f"127.0.0.1:{port}", "--http", "127.0.0.1:0")
    modules = imported(*words, f"host=127.0.0.1 port={port} user=nobody dbname=none", *members)
    assert "quorum_wal.walproposer.stream.incarnation" in modules
    assert sorted(modules & NOT_NEEDED) == []
