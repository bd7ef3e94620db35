"""SCRAM-SHA-256 against Postgres's own verifier, against itself, and against forged messages."""

from __future__ import annotations

import base64

import pytest

from quorum_wal.pgwire.auth import (
    ITERATIONS_MAX,
    MECHANISM,
    MECHANISM_PLUS,
    ScramClient,
    ScramServer,
    ScramVerifier,
    make_verifier,
    mock_verifier,
)
from quorum_wal.pgwire.errors import ConnectionRefused, ProtocolError

SALT = bytes(range(16))
VERIFIER = make_verifier("pencil", SALT)


def exchange(verifier: ScramVerifier, password: str) -> None:
    """The whole exchange. Raises the error of the side that ends it."""
    server = ScramServer("u", verifier, "server")
    client = ScramClient(password, "client")
    client.verify(server.final(client.respond(server.first(client.first()))))


def test_the_exchange_of_rfc_7677() -> None:
    """The RFC's client names its user in n=, libpq does not: the server accepts both."""
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    server = ScramServer("user", make_verifier("pencil", salt), "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    assert server.first(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO") == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    assert server.final(final) == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("password", "text"),
    [
        (
            "correct horse",
            "SCRAM-SHA-256$4096:7mBIUW0ttN1JVixd2WKVBw==$a+aSZAa2gGQ0vJIOmt5kxEzRWIuByHNAuHrG+"
            "gyTbSE=:OrybL8uiv3reKd9b4m/5hAgf2VgpFb+giwi7JBeKESA=",
        ),
        (
            "I\u00adX \u2178 \u00aaパス",
            "SCRAM-SHA-256$4096:rPNNGOwOrNTwghyVKggYxQ==$j89AaSwFArPs3v4uLr6rumKvZwVXl+1D0/50M"
            "7/YdQw=:Ajd+tIIM+npXwCX6L0gTqNWLAx+VZ4lhoweuGsHG2qU=",
        ),
    ],
)
def test_verifiers_as_postgres_made_them(password: str, text: str) -> None:
    """pg_authid.rolpassword of Postgres 15, after CREATE ROLE ... PASSWORD."""
    verifier = ScramVerifier.parse(text)
    assert str(verifier) == text
    assert make_verifier(password, verifier.salt, verifier.iterations) == verifier


@pytest.mark.parametrize(
    "text",
    [
        "",
        "md5c4ca4238a0b923820dcc509a6f75849b",
        str(VERIFIER) + "x",
        str(VERIFIER).replace("4096", "0"),
        str(VERIFIER).replace("4096", "-1"),
        str(VERIFIER).replace("SHA-256", "SHA-512"),
        "SCRAM-SHA-256$4096:!$AAAA:AAAA",
        "SCRAM-SHA-256$4096:AAAA$AAAA:AAAA",
    ],
)
def test_a_malformed_verifier_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"invalid SCRAM verifier|base64|padding|Non-base64"):
        ScramVerifier.parse(text)


@pytest.mark.parametrize(
    "password", ["pencil", "", "pässwörd", "パスワード", "a\u00adb", "\u0627a"]
)
def test_the_right_password(password: str) -> None:
    exchange(make_verifier(password, SALT), password)


def test_passwords_are_prepared_as_rfc_4013_says() -> None:
    """The RFC's examples: mapped to nothing, to a space, composed; prohibited ones stay."""
    assert make_verifier("I\u00adX", SALT, 1) == make_verifier("IX", SALT, 1)
    assert make_verifier("a\u00a0b", SALT, 1) == make_verifier("a b", SALT, 1)
    assert make_verifier("\u2168", SALT, 1) == make_verifier("IX", SALT, 1)
    assert make_verifier("\u00aa", SALT, 1) == make_verifier("a", SALT, 1)
    assert make_verifier("\u2168\u0007", SALT, 1) != make_verifier("IX\u0007", SALT, 1)
    assert make_verifier("\u0627\u00aa", SALT, 1) != make_verifier("\u0627a", SALT, 1)


@pytest.mark.parametrize("password", ["pencil ", "Pencil", "", "pencilpencil"])
def test_a_wrong_password(password: str) -> None:
    with pytest.raises(ConnectionRefused, match='password authentication failed for user "u"') as e:
        exchange(VERIFIER, password)
    assert e.value.sqlstate == "28P01"


def test_a_user_that_does_not_exist_looks_like_one_that_does() -> None:
    mock = mock_verifier("nobody", b"secret")
    assert mock == mock_verifier("nobody", b"secret"), "its salt must not change from try to try"
    assert mock.salt != mock_verifier("nobody", b"other").salt
    assert mock.salt != mock_verifier("somebody", b"secret").salt
    assert (mock.iterations, len(mock.salt)) == (VERIFIER.iterations, len(VERIFIER.salt))
    with pytest.raises(ConnectionRefused, match='password authentication failed for user "u"'):
        exchange(mock, "pencil")


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "expected n,,"),
        (b"\xff", "expected UTF-8"),
        (b"n,,n=,r=", "expected n,,"),
        (b"n,,n=,r=a b", "expected n,,"),
        (b"n,,m=x,n=,r=a", "expected n,,"),
        (b"p=tls-server-end-point,,n=,r=a", "SCRAM-SHA-256 with channel binding"),
        (b"n,a=admin,n=,r=a", "authorization identity"),
    ],
)
def test_a_malformed_first_message(message: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        ScramServer("u", VERIFIER, "server").first(message)


HASH = bytes(range(32))
BOUND_HEADER = b"p=tls-server-end-point,,"


@pytest.mark.parametrize(
    ("binding", "offered", "chosen", "header"),
    [
        (HASH, (MECHANISM_PLUS, MECHANISM), MECHANISM_PLUS, BOUND_HEADER),
        (HASH, (MECHANISM,), MECHANISM, b"y,,"),
        (None, (MECHANISM_PLUS, MECHANISM), MECHANISM, b"n,,"),
        (None, (MECHANISM_PLUS,), None, b"n,,"),
        (None, (), None, b"n,,"),
    ],
)
def test_what_a_client_chooses_and_sends_for_channel_binding(
    binding: bytes | None, offered: tuple[str, ...], chosen: str | None, header: bytes
) -> None:
    client = ScramClient("pencil", "client", binding)
    assert client.choose(offered) == chosen
    assert client.first() == header + b"n=,r=client"


@pytest.mark.parametrize("shown", [HASH, bytes(32), None])
def test_the_proof_is_bound_to_the_certificate(shown: bytes | None) -> None:
    """None: the client does without, which is allowed."""
    server, client = ScramServer("u", VERIFIER, "s", HASH), ScramClient("pencil", "c", shown)
    mechanism = client.choose(server.mechanisms)
    assert mechanism is not None
    final = client.respond(server.first(client.first(), mechanism))
    if shown in (HASH, None):
        client.verify(server.final(final))
        return
    with pytest.raises(ConnectionRefused, match="SCRAM channel binding check failed") as caught:
        server.final(final)
    assert caught.value.sqlstate == "28000"


def test_the_certificates_hash_does_not_replace_the_password() -> None:
    """A third party sees the real certificate too; the proof covers the one that the client saw."""
    server, client = ScramServer("u", VERIFIER, "s", HASH), ScramClient("pencil", "c", bytes(32))
    mechanism = client.choose(server.mechanisms)
    assert mechanism is not None
    final = client.respond(server.first(client.first(), mechanism))
    seen, real = (base64.b64encode(BOUND_HEADER + h) for h in (bytes(32), HASH))
    assert seen in final
    with pytest.raises(ConnectionRefused, match='password authentication failed for user "u"'):
        server.final(final.replace(seen, real))


def test_a_client_that_was_told_of_no_channel_binding_detects_the_third_party() -> None:
    with pytest.raises(ConnectionRefused, match="thinks the server does not") as caught:
        ScramServer("u", VERIFIER, "s", HASH).first(b"y,,n=,r=c", MECHANISM)
    assert caught.value.sqlstate == "28000"
    assert ScramServer("u", VERIFIER, "s").first(b"y,,n=,r=c", MECHANISM)


@pytest.mark.parametrize(
    ("mechanism", "first", "why"),
    [
        (MECHANISM_PLUS, b"n,,n=,r=c", "SCRAM-SHA-256-PLUS without channel binding"),
        (MECHANISM_PLUS, b"y,,n=,r=c", "SCRAM-SHA-256-PLUS without channel binding"),
        (MECHANISM_PLUS, b"p=tls-unique,,n=,r=c", 'channel-binding type "tls-unique"'),
        (MECHANISM_PLUS, b"p=,,n=,r=c", "expected n,,"),
        (MECHANISM_PLUS, b"p=tls-server-end-point,a=x,n=,r=c", "expected n,,"),
        (MECHANISM, b"p=tls-server-end-point,,n=,r=c", "SCRAM-SHA-256 with channel binding"),
        ("SCRAM-SHA-1", b"n,,n=,r=c", "expected SCRAM-SHA-256-PLUS or SCRAM-SHA-256, got SCRAM-SH"),
    ],
)
def test_a_first_message_that_contradicts_its_mechanism(
    mechanism: str, first: bytes, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        ScramServer("u", VERIFIER, "s", HASH).first(first, mechanism)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ((b"c=biws", b"c=eSws"), "channel binding does not match"),
        ((b"c=biws", b"c=***"), "expected base64"),
        ((b"r=client", b"r=other"), "nonce does not match"),
        ((b",p=", b",q="), "expected c=, r= and p="),
        ((b",p=", b",p=AAAA,p="), "expected c=, r= and p="),
        ((b",p=", b",p=AAAA"), "expected base64|expected 32 bytes"),
    ],
)
def test_a_forged_final_message(change: tuple[bytes, bytes], why: str) -> None:
    server, client = ScramServer("u", VERIFIER, "server"), ScramClient("pencil", "client")
    final = client.respond(server.first(client.first()))
    assert change[0] in final
    with pytest.raises((ProtocolError, ConnectionRefused), match=f"{why}|password") as caught:
        server.final(final.replace(*change))
    if change[0] != b",p=":
        assert isinstance(caught.value, ProtocolError)


@pytest.mark.parametrize(
    ("challenge", "why"),
    [
        (b"", "expected r=, s= and i="),
        (b"e=other-error", "expected r=, s= and i="),
        (b"r=clientserver,s=***,i=1", "expected base64"),
        (b"r=server,s=AAAA,i=1", "nonce does not match"),
        (b"r=client,s=AAAA,i=1", "nonce does not match"),
        (b"r=clientserver,s=AAAA,i=0", "iteration count"),
        (f"r=clientserver,s=AAAA,i={ITERATIONS_MAX + 1}".encode(), "iteration count"),
    ],
)
def test_a_client_distrusts_the_challenge(challenge: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        ScramClient("pencil", "client").respond(challenge)


@pytest.mark.parametrize("final", [b"", b"e=x", b"v=", b"v=AAAA"])
def test_a_client_detects_a_server_that_does_not_know_the_password(final: bytes) -> None:
    server, client = ScramServer("u", VERIFIER, "server"), ScramClient("pencil", "client")
    client.respond(server.first(client.first()))
    with pytest.raises(ProtocolError, match="server does not know the password"):
        client.verify(final)
