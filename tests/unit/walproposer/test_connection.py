"""An error of a server that shuts down is temporary; a refusal is permanent."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import psycopg
import pytest

from quorum_wal.pgclient.errors import ConnectionLost, ServerError
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Refusal, Unreachable, WalProposerError
from quorum_wal.walproposer.failover.standby import StandbyServer
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import read_primary_settings
from quorum_wal.walproposer.primary.slot_guard import slot_dropped_on_failure
from quorum_wal.walproposer.stream.upstream import Upstream


@pytest.mark.parametrize(
    ("error", "judged"),
    [
        (psycopg.errors.AdminShutdown("terminating connection"), Unreachable),
        (psycopg.errors.CannotConnectNow("the database system is starting up"), Unreachable),
        (psycopg.OperationalError("server closed the connection unexpectedly"), Unreachable),
        (psycopg.errors.InsufficientPrivilege("permission denied"), Refusal),
        (ServerError("shutting down", sqlstate="57P01"), Unreachable),
        (ServerError("no such slot", sqlstate="42704"), Refusal),
        (ConnectionLost("server closed the connection unexpectedly"), Unreachable),
    ],
)
def test_an_error_is_classified_by_its_sqlstate(error: Exception, judged: type[Exception]) -> None:
    with (
        pytest.raises(judged, match=r"^could not look: ") as caught,
        converting_errors("could not look"),
    ):
        raise error
    assert type(caught.value) is judged


@pytest.mark.parametrize("error", [Refusal("it is logical"), Unreachable("it vanished")])
def test_what_is_judged_already_passes(error: WalProposerError) -> None:
    with pytest.raises(WalProposerError) as caught, converting_errors("could not look"):
        raise error
    assert caught.value is error


class LeavingServer:
    """Accepts its client, and shuts down before the first answer."""

    pgconn = SimpleNamespace()

    def execute(self, *_: object) -> None:
        raise psycopg.errors.AdminShutdown("terminating connection due to administrator command")

    def close(self) -> None:
        """Nothing is held."""


def _slot_guard(address: PrimaryAddress) -> None:
    with slot_dropped_on_failure(address):
        pytest.fail("the block was entered")


@pytest.mark.parametrize(
    "ask",
    [read_primary_settings, Upstream, _slot_guard, lambda address: StandbyServer(address).read()],
    ids=["settings", "upstream", "slot guard", "standby"],
)
def test_a_primary_that_shuts_down_is_unreachable(
    ask: Callable[[PrimaryAddress], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor restarts a proposer that could not reach a server, not one that was refused."""
    monkeypatch.setattr(PrimaryAddress, "connect", lambda *_, **__: LeavingServer())
    with pytest.raises(Unreachable, match="terminating connection"):
        ask(PrimaryAddress("host=pg"))


def test_no_secret_of_a_dsn_is_shown() -> None:
    """The keys of SCRAM open the server as the password does."""
    given = "host=db user=u password=p sslpassword=s scram_client_key=c scram_server_key=k"
    assert str(PrimaryAddress(given)) == "user=u host=db"
    uri = "postgresql://u:p%40ss@db/d?scram_client_key=c&password=q"
    assert str(PrimaryAddress(uri)) == "user=u dbname=d host=db"
