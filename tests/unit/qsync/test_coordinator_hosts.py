"""The forms of a coordinator's address."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.qsync.coordinator_hosts import hosts_of
from quorum_wal.qsync.errors import UsageError


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("proposer:5455", [("proposer", "5455")]),
        ("a:5455, b:5456", [("a", "5455"), ("b", "5456")]),
        ("[::1]:5455", [("::1", "5455")]),
        ("host=a,b port=5455", [("a", "5455"), ("b", "5455")]),
        ("host=a,b port=1,2", [("a", "1"), ("b", "2")]),
        ("postgresql://app@a:1,b:2/", [("a", "1"), ("b", "2")]),
    ],
)
def test_hosts(text: str, places: list[tuple[str, str]]) -> None:
    found = [conninfo_to_dict(conninfo) for conninfo in hosts_of(text)]
    assert [(each["host"], str(each["port"])) for each in found] == places


def test_what_else_is_said_holds_for_each_host() -> None:
    text = "host=a,b user=app passfile=/run/secret sslmode=verify-full application_name=shop"
    for conninfo in hosts_of(text):
        found = conninfo_to_dict(conninfo)
        assert found["user"] == "app"
        assert found["passfile"] == "/run/secret"
        assert found["sslmode"] == "verify-full"
        assert found["application_name"] == "shop"


def test_a_coordinator_gets_a_proof_of_the_password_never_itself() -> None:
    assert conninfo_to_dict(hosts_of("a:5455")[0])["require_auth"] == "none,scram-sha-256"


@pytest.mark.parametrize(
    "text", ["", "proposer", "user=app", "a:b", "nonsense=1", "a:5455 b", "\udcff"]
)
def test_what_is_no_place(text: str) -> None:
    with pytest.raises(UsageError, match="invalid coordinator"):
        hosts_of(text)
