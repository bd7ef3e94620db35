"""A standby's primary_conninfo: its hosts, and the value that names the safekeepers."""

from __future__ import annotations

import pytest

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.failover.standby import safekeepers_conninfo, sources_of
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress


@pytest.mark.parametrize(
    ("conninfo", "sources"),
    [
        ("host=a,b port=1,2 user=x", ("a:1", "b:2")),
        ("host=a,b,c port=5454", ("a:5454", "b:5454", "c:5454")),
        ("host=a", ("a:5432",)),
        ("hostaddr=10.0.0.1 port=7", ("10.0.0.1:7",)),
        ("postgresql://u:p@[::1]:7/db", ("[::1]:7",)),
        ("host=a,b port=1,", ("a:1", "b:5432")),
        ("host=a,b,c port=1,2", ()),
        ("user=x", ()),
        ("", ()),
        ("not a conninfo", ()),
    ],
)
def test_the_sources_of_a_standby(conninfo: str, sources: tuple[str, ...]) -> None:
    assert sources_of(conninfo) == sources


def test_what_is_written_is_read_back() -> None:
    addresses = [SafekeeperAddress("a", 5454), SafekeeperAddress("::1", 7)]
    timeline = TimelineId(bytes(16), bytes(range(16)))
    conninfo = safekeepers_conninfo(addresses, timeline, "user=replica host=elsewhere")
    assert sources_of(conninfo) == ("a:5454", "[::1]:7")
    assert "user=replica" in conninfo
    assert f"timeline_id={bytes(range(16)).hex()}" in conninfo
    assert "tcp_user_timeout=5000" in conninfo
    assert "connect_timeout" not in conninfo  # which a WAL receiver would not look at


def test_the_users_own_timeout_counts() -> None:
    timeline = TimelineId(bytes(16), bytes(range(16)))
    conninfo = safekeepers_conninfo([SafekeeperAddress("a", 1)], timeline, "tcp_user_timeout=9")
    assert "tcp_user_timeout=9 " in conninfo
