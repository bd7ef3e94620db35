"""Our server against real libpq: authentication, TLS, options, commands, copies in both directions.

The server runs in a thread and libpq in the main one: see wire_server.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from psycopg import pq
from wire_server import (
    PASSWORD,
    VERIFIERS,
    Libpq,
    Server,
    assert_echoes,
    finish_polling,
    start_copy,
)

from quorum_wal.pgwire.messages import INT8_OID, TEXT_OID
from quorum_wal.pgwire.tls import ServerTls, TlsFiles


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA, tmp_path: Path) -> dict[str, object]:
    """The settings of a server with a certificate; its authority is in tmp_path/root.crt."""
    pem = tmp_path / "server.pem"
    pem.touch(mode=0o600)
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    authority.cert_pem.write_to_path(str(tmp_path / "root.crt"))
    return {"tls": ServerTls.load(TlsFiles(pem, pem))}


def test_commands_and_their_results(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        assert client.error == ""
        assert client.pgconn.server_version == 180001
        assert client.pgconn.parameter_status(b"integer_datetimes") == b"on"
        (result,) = client.query("IDENTIFY_SYSTEM")
        assert result.status == pq.ExecStatus.TUPLES_OK
        assert [result.get_value(0, i) for i in range(3)] == [b"7123", b"1", None]
        assert [result.fname(i) for i in range(3)] == [b"systemid", b"timeline", b"dbname"]
        assert [result.ftype(i) for i in range(3)] == [TEXT_OID, INT8_OID, TEXT_OID]
        (empty,) = client.query("")
        assert empty.status == pq.ExecStatus.EMPTY_QUERY
        (failed,) = client.query("SHOW  ;")
        assert failed.error_field(pq.DiagnosticField.SQLSTATE) == b"42601"
        assert failed.error_field(pq.DiagnosticField.STATEMENT_POSITION) == b"7"
        (missing,) = client.query("TIMELINE_HISTORY 9")
        assert missing.error_field(pq.DiagnosticField.SQLSTATE) == b"58P01"
        assert missing.error_field(pq.DiagnosticField.MESSAGE_DETAIL) == b"d"
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_startup_parameters_and_options(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    # A connection string removes one level of backslashes, the server the second one.
    options = r"-c tenant_id=a1 -cdatestyle=iso --proposer-http=a\\ b\\\\c"
    with Libpq(server, f"application_name=standby1 options='{options}'") as client:
        assert client.error == ""
        parameters = server.session().parameters
        assert parameters["user"] == "walproposer"
        assert parameters["database"] == "walproposer" or "database" not in parameters
        assert (parameters["replication"], parameters["application_name"]) == ("true", "standby1")
        assert (parameters["tenant_id"], parameters["datestyle"]) == ("a1", "iso")
        assert parameters["proposer_http"] == "a b\\c"
        assert client.pgconn.parameter_status(b"application_name") == b"standby1"


def test_bad_options_are_refused_with_a_hint(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with(), "options='-x 1'") as client:
        assert "FATAL:  invalid command-line argument for server process: -x" in client.error
        assert "-c name=value" in client.error


def test_a_copy_in_both_directions(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        assert_echoes(client)
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK
        assert_echoes(client)


def test_the_end_of_a_timeline(serve_with: Callable[..., Server]) -> None:
    """As libpqwalreceiver sees it: the end of the copy, a row, two tags."""
    with Libpq(serve_with()) as client:
        start_copy(client, "START_WAL_PUSH (end_after 'that''s all')")
        client.put(b"that's all")
        assert client.get() == b"echo that's all"
        assert client.get() is None
        client.pgconn.put_copy_end()
        client.flush()
        row, *tags = client.results()
        assert (row.get_value(0, 0), row.get_value(0, 1)) == (b"2", b"0/3000000")
        assert row.command_status == b"START_STREAMING"
        assert [tag.command_status for tag in tags] == [b"START_REPLICATION"]
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_an_error_in_a_copy_leaves_the_session(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        start_copy(client)
        client.put(b"fail")
        assert client.get() == b"echo fail"
        client.put(b"under way")
        assert client.get() is None
        (failed,) = client.results()
        assert failed.error_field(pq.DiagnosticField.SQLSTATE) == b"XX001"
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_a_client_gives_up_a_copy(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with()) as client:
        start_copy(client)
        client.pgconn.put_copy_end(b"disk full")
        client.flush()
        assert client.get() is None
        (failed,) = client.results()
        assert b"copy ended by CopyFail: disk full" in failed.error_message
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK


def test_scram(serve_with: Callable[..., Server]) -> None:
    with Libpq(serve_with(verifiers=VERIFIERS), f"password={PASSWORD}") as client:
        assert client.error == ""
        assert client.pgconn.used_password
        assert_echoes(client)


@pytest.mark.parametrize("user", ["walproposer", "nobody"])
def test_a_wrong_password(serve_with: Callable[..., Server], user: str) -> None:
    server = serve_with(verifiers=VERIFIERS)
    with Libpq(server, f"user={user} password=wrong") as client:
        assert f'FATAL:  password authentication failed for user "{user}"' in client.error
    assert server.refusal() == f'password authentication failed for user "{user}"'


def test_no_password(serve_with: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSFILE", os.devnull)
    server = serve_with(verifiers=VERIFIERS)
    with Libpq(server) as client:
        assert "no password supplied" in client.error
    assert server.outcome() is None


def test_tls(serve_with: Callable[..., Server], tls: dict[str, object]) -> None:
    server = serve_with(**tls)
    with Libpq(server, "sslmode=require sslrootcert=''") as client:
        assert client.error == ""
        assert client.pgconn.ssl_in_use
        assert server.session().encrypted
        assert_echoes(client)


@pytest.mark.parametrize("negotiation", ["postgres", "direct"])
def test_tls_that_is_verified_and_scram_within(
    serve_with: Callable[..., Server],
    tls: dict[str, object],
    tmp_path: Path,
    negotiation: str,
) -> None:
    server = serve_with(**tls, verifiers=VERIFIERS, require_tls=True)
    conninfo = (
        f"sslmode=verify-full sslrootcert={tmp_path / 'root.crt'} "
        f"sslnegotiation={negotiation} password={PASSWORD}"
    )
    with Libpq(server, conninfo) as client:
        assert client.error == ""
        assert server.session().encrypted
        assert_echoes(client)


def test_a_certificate_of_another_authority(
    serve_with: Callable[..., Server], tls: dict[str, object], tmp_path: Path
) -> None:
    other = tmp_path / "other.crt"
    trustme.CA().cert_pem.write_to_path(str(other))
    server = serve_with(**tls)
    with Libpq(server, f"sslmode=verify-full sslrootcert={other}") as client:
        assert "certificate verify failed" in client.error
    assert server.refusal() == "could not accept TLS connection: TLSV1_ALERT_UNKNOWN_CA"


def test_a_plain_connection_where_tls_is_demanded(
    serve_with: Callable[..., Server], tls: dict[str, object]
) -> None:
    server = serve_with(**tls, require_tls=True)
    with Libpq(server, "sslmode=disable") as client:
        assert 'connection of user "walproposer" is not encrypted' in client.error
        assert "HINT:  Connect with sslmode=require" in client.error
    assert "requires TLS" in server.refusal()


def test_a_server_without_tls(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    with Libpq(server, "sslmode=require sslrootcert=''") as client:
        assert "server does not support SSL, but SSL was required" in client.error
    assert server.outcome() is None
    with Libpq(server, "sslmode=prefer sslrootcert=''") as client:
        assert client.error == ""
        assert not client.pgconn.ssl_in_use


def test_channel_binding_is_not_offered_without_tls(serve_with: Callable[..., Server]) -> None:
    server = serve_with(verifiers=VERIFIERS)
    with Libpq(server, f"password={PASSWORD} channel_binding=require") as client:
        assert "channel binding required, but SSL not in use" in client.error


@pytest.mark.skipif(pq.version() < 180000, reason="libpq before 18 knows protocol 3.0 alone")
def test_newer_protocols(serve_with: Callable[..., Server]) -> None:
    server = serve_with()
    with Libpq(server, "max_protocol_version=latest") as client:
        assert client.error == ""
        assert_echoes(client)
    assert server.outcome() is not None
    for minor, key_bytes in ((0, 4), (2, 32)):
        conninfo = f"min_protocol_version=3.{minor} max_protocol_version=3.{minor}"
        with Libpq(server, conninfo) as client:
            assert client.error == ""
            assert client.pgconn.full_protocol_version == 30000 + minor
            assert len(server.session().key.secret_key) == key_bytes
            assert_echoes(client)


@pytest.mark.skipif(pq.version() < 170000, reason="libpq before 17 cancels by blocking alone")
def test_a_cancel_request_is_closed_silently(serve_with: Callable[..., Server]) -> None:
    """on_cancel decides whether it ends a command."""
    asked: list[tuple[int, bytes]] = []
    server = serve_with(process_id=7, on_cancel=lambda pid, key: asked.append((pid, key)))
    with Libpq(server) as client:
        session = server.session()
        cancel = client.pgconn.cancel_conn()
        cancel.start()
        finish_polling(cancel.poll, lambda: cancel.socket)
        assert cancel.get_error_message() == "no error details available"
        assert server.outcome() is None
        assert client.pgconn.backend_pid == 7
        assert asked == [(7, session.key.secret_key)]
        assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK
        assert session.fileno() >= 0
