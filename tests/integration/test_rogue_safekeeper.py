"""A server that asks for a password in clear text or as MD5 is not a safekeeper, and gets none."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from rogue_safekeeper import TIMEOUT, RogueSafekeeper
from sk_command import sk

from quorum_wal.pg_server.program import run_program
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient

PASSWORD = "correct horse battery staple"
NOT_ASKED = "server did not complete authentication"
ASKED = {"cleartext": "server requested a cleartext password", "md5": "requested a hashed password"}


def ask_by_sk(address: str, conninfo: str) -> str:
    given = ("--safekeeper-conninfo", conninfo) if conninfo else ()
    done = sk("timeline", "list", "--safekeepers", address, *given)
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def ask_by_proposer(address: str, conninfo: str) -> str:
    try:
        SafekeeperClient(SafekeeperAddress.parse(address, conninfo)).identify()
    except Unreachable as error:
        return f"{error}; {error.hint}"
    return ""


SPARK = """
import sys
from quorum_wal.spark.errors import WalInputError
from quorum_wal.spark.inputs.safekeeper_session import SafekeeperSession, parse_safekeepers
try:
    SafekeeperSession(parse_safekeepers(sys.argv[1], None)[0]).close()
except WalInputError as error:
    print(error)
"""


def ask_by_spark(address: str, conninfo: str) -> str:
    """In a process of its own, as executors are, because it waits inside libpq."""
    host, _, port = address.rpartition(":")
    keywords = f"host={host} port={port} user=u {conninfo}"
    return run_program([sys.executable, "-c", SPARK, keywords], timeout=TIMEOUT).stdout


ASKERS = (ask_by_sk, ask_by_proposer, ask_by_spark)


@pytest.mark.parametrize(
    ("ask", "demand"),
    [*((ask, "cleartext") for ask in ASKERS), (ask_by_proposer, "md5")],
)
def test_a_password_is_proven_and_never_sent(
    ask: Callable[[str, str], str], demand: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    passfile = tmp_path / "passfile"
    passfile.touch(mode=0o600)
    passfile.write_text(f"*:*:*:*:{PASSWORD}\n")
    with RogueSafekeeper(demand) as rogue:
        assert ASKED[demand] in ask(rogue.address, f"passfile={passfile}")
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        assert ASKED[demand] in ask(rogue.address, "")
        assert rogue.startups >= 2
        assert rogue.passwords == []


@pytest.mark.parametrize("ask", ASKERS)
def test_a_server_that_does_not_ask_for_the_password_is_refused(
    ask: Callable[[str, str], str],
) -> None:
    """A server that accepts without a proof proves nothing itself."""
    with RogueSafekeeper("nothing") as rogue:
        assert NOT_ASKED in ask(rogue.address, f"password='{PASSWORD}'")
        assert rogue.startups >= 1
        assert rogue.commands == []


@pytest.mark.parametrize("where", ["conninfo", "environment"])
def test_the_setting_of_the_user_is_kept(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    conninfo = f"password='{PASSWORD}'"
    if where == "conninfo":
        conninfo += " require_auth=password"
    else:
        monkeypatch.setenv("PGREQUIREAUTH", "password")
    with RogueSafekeeper("cleartext") as rogue:
        ask_by_proposer(rogue.address, conninfo)
        assert [PASSWORD.encode() in given for given in rogue.passwords] == [True]


def test_the_message_says_what_to_do() -> None:
    with RogueSafekeeper("nothing") as rogue:
        told = ask_by_proposer(rogue.address, f"password='{PASSWORD}'")
    assert "require_auth=none" in told


def test_libpq_knows_require_auth() -> None:
    assert psycopg.pq.version() >= 160000
