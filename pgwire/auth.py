"""SCRAM-SHA-256 and SCRAM-SHA-256-PLUS, the server's half and the client's.

    client-first   n,,n=,r=<client nonce>                      gs2 header, then the bare message
    server-first   r=<client nonce><server nonce>,s=<salt>,i=<iterations>
    client-final   c=<gs2 header><binding>,r=<both nonces>,p=<proof>
    server-final   v=<server signature>


The gs2 header contains the client's choice of channel binding: `n,,` none; `y,,` the client
supports it but the server does not offer it; `p=tls-server-end-point,,` this type. Then the binding
is the hash of the server's certificate (`certificate.py`), and the proof covers it. Law: a `y` to a
server that does offer it is refused, because a third party must have changed the offer.

The server stores no password but a verifier, in the text form of `pg_authid.rolpassword`:
`SCRAM-SHA-256$<iterations>:<salt>$<StoredKey>:<ServerKey>`, so that it can be copied from there.
Nonces and salts are inputs: this module has no randomness. libpq leaves the name `n=` empty; the
user is the one in the startup packet. Sources: RFC 5802, RFC 4013, Postgres `auth-scram.c`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import stringprep
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from quorum_wal.pgwire.errors import (
    INVALID_AUTHORIZATION,
    INVALID_PASSWORD,
    ConnectionRefused,
    ProtocolError,
)

MECHANISM = "SCRAM-SHA-256"
MECHANISM_PLUS = "SCRAM-SHA-256-PLUS"
BINDING_TYPE = "tls-server-end-point"  # the only one that Postgres has
ITERATIONS_DEFAULT = 4096  # SCRAM_SHA_256_DEFAULT_ITERATIONS
ITERATIONS_MAX = 1_000_000  # half a second: a server must not make a client compute for longer
_KEY_BYTES = 32
_SALT_BYTES = 16

_NONCE = r"[!-+\--~]+"  # printable ASCII without the comma
_CLIENT_FIRST = re.compile(
    f"((?:[ny]|p=([-.0-9A-Za-z]+)),,)(n=[^,]*,r=({_NONCE})(?:,[^\\0]*)?)", re.ASCII
)
_SERVER_FIRST = re.compile(f"r=({_NONCE}),s=([^,]+),i=([0-9]{{1,9}})(?:,[^\\0]*)?")
_CLIENT_FINAL = re.compile(f"(c=([^,]+),r=({_NONCE})(?:,[^\\0]*)?),p=([^,]+)")
_VERIFIER = re.compile(
    re.escape(MECHANISM) + r"\$([1-9][0-9]{0,8}):([^$:]+)\$([^$:]+):([^$:]+)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class ScramVerifier:
    """The data that a server stores instead of a password."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    @classmethod
    def parse(cls, text: str) -> ScramVerifier:
        """From Postgres's text form. Raises ValueError."""
        match = _VERIFIER.fullmatch(text)
        if match is None:
            raise ValueError(
                f"invalid SCRAM verifier: expected {MECHANISM}$<iterations>:<salt>"
                "$<StoredKey>:<ServerKey>"
            )
        salt, stored_key, server_key = (
            base64.b64decode(part, validate=True) for part in match.groups()[1:]
        )
        if len(stored_key) != _KEY_BYTES or len(server_key) != _KEY_BYTES:
            raise ValueError(f"invalid SCRAM verifier: expected keys of {_KEY_BYTES} bytes")
        return cls(int(match[1]), salt, stored_key, server_key)

    def __str__(self) -> str:
        salt, stored_key, server_key = map(_base64, (self.salt, self.stored_key, self.server_key))
        return f"{MECHANISM}${self.iterations}:{salt}${stored_key}:{server_key}"


def make_verifier(
    password: str, salt: bytes, iterations: int = ITERATIONS_DEFAULT
) -> ScramVerifier:
    """The verifier of a password; `salt` is 16 random bytes. Costs `iterations` hashes."""
    salted = _salted_password(password, salt, iterations)
    stored_key = hashlib.sha256(_hmac(salted, b"Client Key")).digest()
    return ScramVerifier(iterations, salt, stored_key, _hmac(salted, b"Server Key"))


def mock_verifier(user: str, secret: bytes) -> ScramVerifier:
    """A verifier that no password matches, always the same one for a user and a secret.

    It replaces the verifier of a user that does not exist, so that a client cannot find out which
    users exist.
    """
    name = user.encode("utf-8", "surrogateescape")
    salt, stored_key, server_key = (_hmac(secret, part + name) for part in (b"s", b"c", b"v"))
    return ScramVerifier(ITERATIONS_DEFAULT, salt[:_SALT_BYTES], stored_key, server_key)


class ScramServer:
    """first(), then final(). Raises ProtocolError for invalid messages, and then stops."""

    def __init__(
        self, user: str, verifier: ScramVerifier, nonce: str, binding: bytes | None = None
    ) -> None:
        """`nonce`: at least 18 random bytes, in base64. `binding`: the hash of the server's
        certificate, to which the client must bind; None: channel binding is not offered."""
        self._user = user
        self._verifier = verifier
        self._nonce = nonce
        self._binding = binding
        self._bound = b""  # the client must repeat it in c=
        self._transcript = ""

    @property
    def mechanisms(self) -> tuple[str, ...]:
        """The mechanisms offered, best first."""
        return (MECHANISM,) if self._binding is None else (MECHANISM_PLUS, MECHANISM)

    def first(self, client_first: bytes, mechanism: str = MECHANISM) -> bytes:
        """client-first-message -> server-first-message. `mechanism`: the client's choice."""
        if mechanism not in self.mechanisms:
            raise ProtocolError(
                f"client selected an invalid SASL mechanism: expected "
                f"{' or '.join(self.mechanisms)}, got {mechanism}"
            )
        text = _text(client_first)
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise ProtocolError(f"malformed SCRAM message: {_why_not_client_first(text)}")
        header, binding_type, bare, client_nonce = match.groups()
        self._bound = header.encode() + self._expected_binding(mechanism, header, binding_type)
        self._nonce = client_nonce + self._nonce
        server_first = (
            f"r={self._nonce},s={_base64(self._verifier.salt)},i={self._verifier.iterations}"
        )
        self._transcript = f"{bare},{server_first}"
        return server_first.encode()

    def _expected_binding(self, mechanism: str, header: str, binding_type: str | None) -> bytes:
        """Like Postgres's `read_client_first_message`. Raises ProtocolError, ConnectionRefused."""
        if mechanism == MECHANISM_PLUS:
            if binding_type is None:
                raise ProtocolError(
                    f"malformed SCRAM message: {MECHANISM_PLUS} without channel binding"
                )
            if binding_type != BINDING_TYPE:
                raise ProtocolError(f'unsupported SCRAM channel-binding type "{binding_type}"')
            assert self._binding is not None
            return self._binding
        if binding_type is not None:
            raise ProtocolError(f"malformed SCRAM message: {MECHANISM} with channel binding")
        if header.startswith("y") and self._binding is not None:
            raise ConnectionRefused(
                "SCRAM channel binding negotiation error: the client supports SCRAM channel "
                "binding but thinks the server does not. However, this server does support it",
                sqlstate=INVALID_AUTHORIZATION,
                hint="A third party between client and server may have changed the server's offer.",
            )
        return b""

    def final(self, client_final: bytes) -> bytes:
        """client-final-message -> server-final-message. Raises ConnectionRefused for a wrong
        password, or if the client saw another certificate."""
        match = _CLIENT_FINAL.fullmatch(_text(client_final))
        if match is None:
            raise ProtocolError("malformed SCRAM message: expected c=, r= and p=")
        without_proof, binding, nonce, proof_text = match.groups()
        self._check_binding(_unbase64(binding))
        if nonce != self._nonce:
            raise ProtocolError("SCRAM nonce does not match")
        proof = _unbase64(proof_text)
        if len(proof) != _KEY_BYTES:
            raise ProtocolError(
                f"malformed SCRAM proof: expected {_KEY_BYTES} bytes, got {len(proof)}"
            )
        transcript = f"{self._transcript},{without_proof}".encode()
        client_key = _xor(proof, _hmac(self._verifier.stored_key, transcript))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), self._verifier.stored_key):
            raise ConnectionRefused(
                f'password authentication failed for user "{self._user}"',
                sqlstate=INVALID_PASSWORD,
            )
        return b"v=" + _base64(_hmac(self._verifier.server_key, transcript)).encode()

    def _check_binding(self, bound: bytes) -> None:
        """Raises ProtocolError, ConnectionRefused."""
        if bound == self._bound:
            return
        if self._bound.startswith(b"p="):
            raise ConnectionRefused(
                "SCRAM channel binding check failed",
                sqlstate=INVALID_AUTHORIZATION,
                hint="The client received another certificate than this server's: a third party "
                "between them may have terminated the encryption.",
            )
        raise ProtocolError("SCRAM channel binding does not match the first message")


def _why_not_client_first(text: str) -> str:
    if text.startswith(("n,a=", "y,a=")):
        return "an authorization identity is not supported"
    return "expected n,,n=,r=<nonce>"


class ScramClient:
    """first(), then respond(), then verify(). Raises ProtocolError, and then stops."""

    def __init__(self, password: str, nonce: str, binding: bytes | None = None) -> None:
        """`binding`: the hash of the server's certificate; None without TLS."""
        self._password = password
        self._nonce = nonce
        self._binding = binding
        self._header = "n,,"
        self._server_signature = b""

    def choose(self, offered: Sequence[str]) -> str | None:
        """The best mechanism that both support, or None."""
        if self._binding is not None and MECHANISM_PLUS in offered:
            self._header = f"p={BINDING_TYPE},,"
            return MECHANISM_PLUS
        self._header = "n,," if self._binding is None else "y,,"
        return MECHANISM if MECHANISM in offered else None

    def first(self) -> bytes:
        """client-first-message."""
        return f"{self._header}n=,r={self._nonce}".encode()

    def respond(self, server_first: bytes) -> bytes:
        """server-first-message -> client-final-message. The server sets the number of hashes."""
        text = _text(server_first)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise ProtocolError("malformed SCRAM message: expected r=, s= and i=")
        nonce, salt, iterations = match[1], _unbase64(match[2]), int(match[3])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise ProtocolError("SCRAM nonce does not match")
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise ProtocolError(
                f"invalid SCRAM iteration count: expected 1 to {ITERATIONS_MAX}, got {iterations}"
            )
        salted = _salted_password(self._password, salt, iterations)
        is_bound = self._header.startswith("p=") and self._binding is not None
        bound = self._header.encode() + (self._binding or b"" if is_bound else b"")
        without_proof = f"c={_base64(bound)},r={nonce}"
        transcript = f"n=,r={self._nonce},{text},{without_proof}".encode()
        client_key = _hmac(salted, b"Client Key")
        signature = _hmac(hashlib.sha256(client_key).digest(), transcript)
        self._server_signature = _hmac(_hmac(salted, b"Server Key"), transcript)
        return f"{without_proof},p={_base64(_xor(client_key, signature))}".encode()

    def verify(self, server_final: bytes) -> None:
        """Checks the server's signature: only a server that knows the verifier can compute it."""
        text = _text(server_final)
        signature = _unbase64(text[2:]) if text.startswith("v=") else b""
        if not hmac.compare_digest(signature, self._server_signature):
            raise ProtocolError("server does not know the password: wrong SCRAM signature")


def _salted_password(password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", _saslprep(password).encode(), salt, iterations)


def _saslprep(text: str) -> str:
    """RFC 4013. Like Postgres, uses a text that it prohibits unchanged."""
    mapped = "".join(
        " " if stringprep.in_table_c12(c) else c for c in text if not stringprep.in_table_b1(c)
    )
    prepared = unicodedata.ucd_3_2_0.normalize("NFKC", mapped)
    if not prepared or any(_is_prohibited(c) for c in prepared):
        return text
    if any(map(stringprep.in_table_d1, prepared)):
        ends_right_to_left = stringprep.in_table_d1(prepared[0]) and stringprep.in_table_d1(
            prepared[-1]
        )
        if not ends_right_to_left or any(map(stringprep.in_table_d2, prepared)):
            return text
    return prepared


def _is_prohibited(character: str) -> bool:
    return (
        stringprep.in_table_a1(character)  # unassigned in Unicode 3.2
        or stringprep.in_table_c12(character)
        or stringprep.in_table_c21_c22(character)
        or stringprep.in_table_c3(character)
        or stringprep.in_table_c4(character)
        or stringprep.in_table_c5(character)
        or stringprep.in_table_c6(character)
        or stringprep.in_table_c7(character)
        or stringprep.in_table_c8(character)
        or stringprep.in_table_c9(character)
    )


def _text(message: bytes) -> str:
    try:
        return message.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("malformed SCRAM message: expected UTF-8") from error


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError("malformed SCRAM message: expected base64") from error


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
