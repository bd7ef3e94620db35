"""From the first byte to idle, both halves against each other: accepted and refused clients."""

from __future__ import annotations

import pytest
from fake_link import PARAMETERS, STARTUP, FakeLink, kinds

from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.pgwire.connection import ClientConnection, ServerConnection, State
from quorum_wal.pgwire.errors import ConnectionRefused, LocalProtocolError, ProtocolError, WireError
from quorum_wal.pgwire.handshake import ClientHandshake, ServerHandshake, ServerPolicy
from quorum_wal.pgwire.messages import (
    AuthenticationOk,
    AuthenticationSasl,
    AuthenticationSaslContinue,
    AuthenticationSaslFinal,
    BackendKeyData,
    ErrorResponse,
    NegotiateProtocolVersion,
    ParameterStatus,
    Query,
    ReadyForQuery,
    SaslInitialResponse,
    SaslResponse,
)
from quorum_wal.pgwire.startup import (
    CancelRequest,
    EncryptionAnswer,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
)

SCRAM = ServerPolicy(verifiers={"walproposer": make_verifier("pencil", b"salt", 4)})
TLS_ONLY = ServerPolicy(tls_available=True, tls_required=True)


def refusal(link: FakeLink) -> tuple[WireError, ErrorResponse]:
    """The server's exception, and the client's message."""
    with pytest.raises(ConnectionRefused) as caught:
        link.shake_hands()
    link.client.feed(link.server.farewell(caught.value))
    report = link.client.next()
    assert isinstance(report, ErrorResponse)
    assert link.states == (State.CLOSED, State.CLOSED)
    return caught.value, report


def test_trust() -> None:
    link = FakeLink()
    link.shake_hands()
    assert link.server_got == [STARTUP]
    assert link.client_got == [
        AuthenticationOk(),
        *(ParameterStatus(name, value) for name, value in PARAMETERS.items()),
        BackendKeyData(7, b"key!"),
        ReadyForQuery(),
    ]
    assert link.server_handshake.parameters == STARTUP.parameters


def test_scram() -> None:
    link = FakeLink(SCRAM, password="pencil")
    link.shake_hands()
    assert kinds(link.server_got) == [StartupMessage, SaslInitialResponse, SaslResponse]
    assert kinds(link.client_got)[:4] == [
        AuthenticationSasl,
        AuthenticationSaslContinue,
        AuthenticationSaslFinal,
        AuthenticationOk,
    ]


BOUND = ServerPolicy(
    tls_available=True, verifiers=SCRAM.verifiers, certificate_hash=b"hash of the certificate"
)


def link_with(certificate_hash: bytes | None, *, tls: bool = True) -> FakeLink:
    """A client that received a certificate with this hash."""
    link = FakeLink(BOUND, password="pencil", tls=tls)
    link.client_handshake = ClientHandshake(
        link.client,
        STARTUP,
        password="pencil",
        nonce="client-nonce",
        tls=tls,
        certificate_hash=certificate_hash,
    )
    return link


@pytest.mark.parametrize(
    ("certificate_hash", "mechanism"),
    [(b"hash of the certificate", "SCRAM-SHA-256-PLUS"), (None, "SCRAM-SHA-256")],
)
def test_channel_binding_where_the_client_supports_it(
    certificate_hash: bytes | None, mechanism: str
) -> None:
    link = link_with(certificate_hash)
    link.shake_hands()
    offered = next(m for m in link.client_got if isinstance(m, AuthenticationSasl))
    assert offered.mechanisms == ("SCRAM-SHA-256-PLUS", "SCRAM-SHA-256")
    chosen = next(m for m in link.server_got if isinstance(m, SaslInitialResponse))
    assert chosen.mechanism == mechanism


def test_channel_binding_is_not_offered_without_tls() -> None:
    link = link_with(None, tls=False)
    link.shake_hands()
    offered = next(m for m in link.client_got if isinstance(m, AuthenticationSasl))
    assert offered.mechanisms == ("SCRAM-SHA-256",)


def test_another_certificate_in_between_is_detected() -> None:
    error, report = refusal(link_with(b"hash of another one"))
    assert str(error) == "SCRAM channel binding check failed"
    assert report.sqlstate == "28000"


def test_tls_and_scram() -> None:
    policy = ServerPolicy(tls_available=True, tls_required=True, verifiers=SCRAM.verifiers)
    link = FakeLink(policy, password="pencil", tls=True)
    link.shake_hands()
    assert link.server_got[:2] == [SSLRequest(), STARTUP]
    assert link.client_got[0] == EncryptionAnswer(True)
    assert link.server.encrypted
    assert link.client.encrypted


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("walproposer", ""),
        (None, "connection requires a valid client certificate"),
        ("WALPROPOSER", 'certificate authentication failed for user "walproposer"'),
        ("", 'certificate authentication failed for user "walproposer"'),
    ],
)
def test_a_certificate_must_have_the_users_name(name: str | None, sentence: str) -> None:
    """And the password is required as well."""
    policy = ServerPolicy(tls_available=True, certificate_required=True, verifiers=SCRAM.verifiers)
    link = FakeLink(policy, password="pencil", tls=True)
    link.server_handshake.certificate_name = name
    if not sentence:
        link.shake_hands()
        assert SaslResponse in kinds(link.server_got)
        return
    error, report = refusal(link)
    assert report.sqlstate == "28000"
    assert sentence in str(error)
    assert SaslInitialResponse not in kinds(link.server_got)


@pytest.mark.parametrize("user", ["walproposer", "nobody"])
def test_a_wrong_password_and_no_such_user_look_the_same(user: str) -> None:
    link = FakeLink(SCRAM, StartupMessage({"user": user}), password="pen")
    error, report = refusal(link)
    assert str(error) == f'password authentication failed for user "{user}"'
    assert (report.severity, report.sqlstate, report.message) == ("FATAL", "28P01", str(error))
    assert kinds(link.server_got) == [StartupMessage, SaslInitialResponse, SaslResponse]


def test_a_client_without_a_password_gives_up() -> None:
    with pytest.raises(ConnectionRefused, match="server requests a password, but none was given"):
        FakeLink(SCRAM).shake_hands()


def test_a_plain_connection_is_refused_where_tls_is_required() -> None:
    error, report = refusal(FakeLink(TLS_ONLY))
    assert (report.sqlstate, report.message) == ("28000", str(error))
    assert "requires TLS" in report.message
    assert report.hint is not None
    assert "sslmode=require" in report.hint


def test_a_client_that_requires_tls_does_not_continue_without() -> None:
    link = FakeLink(tls=True)
    with pytest.raises(ConnectionRefused, match="server does not support TLS"):
        link.shake_hands()
    assert link.server_got == [SSLRequest()]


def test_a_startup_without_a_user_is_refused() -> None:
    _, report = refusal(FakeLink(startup=StartupMessage({"database": "d"})))
    assert (report.sqlstate, report.message) == (
        "28000",
        "no PostgreSQL user name specified in startup packet",
    )


def test_options_become_parameters_and_the_packet_wins() -> None:
    options = "-c timeline_id=2 -c user=root --tenant-id=1"
    link = FakeLink(startup=StartupMessage({"user": "u", "options": options}))
    link.shake_hands()
    assert link.server_handshake.parameters == {
        "user": "u",
        "options": options,
        "timeline_id": "2",
        "tenant_id": "1",
    }


def test_bad_options_are_refused() -> None:
    _, report = refusal(FakeLink(startup=StartupMessage({"user": "u", "options": "--help"})))
    assert report.sqlstate == "42601"


@pytest.mark.parametrize("policy", [ServerPolicy(), SCRAM])
def test_a_greased_client_is_answered_before_anything_else(policy: ServerPolicy) -> None:
    """libpq 19 requests 3.9999 and an option that does not exist; the server must name both."""
    startup = StartupMessage(
        STARTUP.parameters, 9999, {"_pq_.test_protocol_negotiation": "1", "_pq_.b": ""}
    )
    link = FakeLink(policy, startup, password="pencil")
    link.shake_hands()
    assert link.client_got[0] == NegotiateProtocolVersion(
        2, ("_pq_.test_protocol_negotiation", "_pq_.b")
    )
    assert link.server_handshake.minor == 2
    assert link.server_handshake.parameters == STARTUP.parameters


def test_gss_encryption_is_declined() -> None:
    connection = ServerConnection()
    connection.feed(GSSENCRequest().encode())
    message = connection.next()
    assert message == GSSENCRequest()
    assert ServerHandshake(connection, TLS_ONLY, "n").receive(GSSENCRequest()) == b"N"


def test_a_cancel_request_is_not_answered() -> None:
    connection = ServerConnection()
    handshake = ServerHandshake(connection, TLS_ONLY, "n")
    connection.feed(CancelRequest(1, b"2345").encode())
    message = connection.next()
    assert message == CancelRequest(1, b"2345")
    assert handshake.receive(CancelRequest(1, b"2345")) == b""
    assert handshake.is_over
    assert connection.farewell(ConnectionRefused("no")) == b""


def test_a_mechanism_that_was_not_offered_is_refused() -> None:
    connection = ServerConnection()
    handshake = ServerHandshake(connection, SCRAM, "server-nonce")
    connection.feed(STARTUP.encode())
    assert connection.next() == STARTUP
    handshake.receive(STARTUP)
    with pytest.raises(ProtocolError, match="expected SCRAM-SHA-256, got SCRAM-SHA-256-PLUS"):
        handshake.receive(SaslInitialResponse("SCRAM-SHA-256-PLUS", b"n,,n=,r=a"))


def test_a_message_after_the_handshake_is_our_bug() -> None:
    link = FakeLink()
    link.shake_hands()
    with pytest.raises(LocalProtocolError, match="Query is not part of a handshake"):
        link.server_handshake.receive(Query("SHOW a"))


def test_a_client_refuses_mechanisms_it_does_not_know() -> None:
    client = ClientConnection()
    handshake = ClientHandshake(client, STARTUP, password="pencil", nonce="n")
    handshake.start()
    with pytest.raises(ConnectionRefused, match=r"server offers .*, expected SCRAM-SHA-256"):
        handshake.receive(AuthenticationSasl(("SCRAM-SHA-256-PLUS",)))


def test_a_refused_client_gets_the_reason() -> None:
    handshake = ClientHandshake(ClientConnection(), STARTUP)
    with pytest.raises(ConnectionRefused, match="the database system is shutting down") as caught:
        handshake.receive(
            ErrorResponse("FATAL", "57P03", "the database system is shutting down", hint="wait")
        )
    assert (caught.value.sqlstate, caught.value.hint) == ("57P03", "wait")
