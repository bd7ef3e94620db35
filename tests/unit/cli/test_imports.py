"""What a proposer imports before it leads: commits wait for each module of it."""

from __future__ import annotations

import subprocess

import pytest

from pg_fixtures.ports import free_port
from pg_fixtures.processes import SK

#: Of the status page, of logs in colours, of --qsync, of --lock and of the stop of a server.
NOT_NEEDED = {
    "aiohttp",
    "jinja2",
    "cluster",
    "prometheus_client",
    "http.server",
    "urllib.request",
    "rich.console",
    "access.access",
    "qsync",
    "walproposer.qsync.coordination",
    "walproposer.qsync.limbo_events",
    "walproposer.qsync.verdict_server",
    "walproposer.locks.etcd_lock",
    "obstore",
    "pgwire.connection",
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
    """Nobody is there to connect to, so it comes as far as its first question."""
    port = free_port()
    members = ("--safekeepers", f"127.0.0.1:{port}", "--http", "127.0.0.1:0")
    modules = imported(*words, f"host=127.0.0.1 port={port} user=nobody dbname=none", *members)
    assert "walproposer.stream.incarnation" in modules
    assert sorted(modules & NOT_NEEDED) == []
