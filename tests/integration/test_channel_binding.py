"""SCRAM-SHA-256-PLUS against libpq, which computes the hash of a certificate by itself."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID
from psycopg import pq
from wire_server import PASSWORD, TIMEOUT_S, VERIFIERS, Libpq, LocalListener, Server

from quorum_wal.pgwire.blocking import Session
from quorum_wal.pgwire.startup import SSLRequest
from quorum_wal.pgwire.tls import ServerTls, TlsFiles


def certificate(
    path: Path,
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | Ed25519PrivateKey,
    algorithm: hashes.HashAlgorithm | None,
    **how: Any,
) -> ServerTls:
    """A server certificate with this signature algorithm."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, algorithm, **how)  # type: ignore[arg-type]
    )
    pem = path / "signed.pem"
    pem.touch(mode=0o600)
    encoding, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    pem.write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, no_password)
        + signed.public_bytes(encoding)
    )
    return ServerTls.load(TlsFiles(pem, pem))  # fmt: skip


PSS = {"rsa_padding": padding.PSS(padding.MGF1(hashes.SHA384()), 48)}


@pytest.mark.parametrize(
    ("kind", "algorithm", "how"),
    [
        ("rsa", hashes.SHA256(), {}),
        ("rsa", hashes.SHA512(), {}),
        ("rsa", hashes.SHA384(), PSS),
        ("ec", hashes.SHA256(), {}),
        ("ec", hashes.SHA384(), {}),
        ("ed25519", None, {}),
    ],
    ids=[
        "RSA",
        "RSA with SHA-512",
        "RSA-PSS with SHA-384",
        "ECDSA",
        "ECDSA with SHA-384",
        "Ed25519",
    ],
)
def test_channel_binding(
    serve_with: Callable[..., Server],
    tmp_path: Path,
    kind: str,
    algorithm: hashes.HashAlgorithm | None,
    how: dict[str, Any],
) -> None:
    """libpq computes the hash of the certificate itself. For Ed25519 it has no hash either: the
    server does not offer channel binding, and refuses only clients that require it."""
    make = {
        "rsa": lambda: rsa.generate_private_key(65537, 2048),
        "ec": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ed25519": Ed25519PrivateKey.generate,
    }
    server = serve_with(
        tls=certificate(tmp_path, make[kind](), algorithm, **how), verifiers=VERIFIERS
    )
    tls = f"sslmode=require sslrootcert='' password={PASSWORD}"
    modes = ("disable", "prefer") if kind == "ed25519" else ("disable", "prefer", "require")
    for mode in modes:
        with Libpq(server, f"{tls} channel_binding={mode}") as client:
            assert client.error == ""
            assert client.query("IDENTIFY_SYSTEM")[0].status == pq.ExecStatus.TUPLES_OK
        assert isinstance(server.outcome(), Session)
    if kind == "ed25519":
        with Libpq(server, f"{tls} channel_binding=require") as client:
            assert "channel binding is required, but server did not offer" in client.error
        assert server.outcome() is None
    with Libpq(server, f"{tls}x") as client:
        assert "password authentication failed" in client.error


def test_a_machine_in_the_middle_is_detected(
    serve_with: Callable[..., Server], tmp_path: Path
) -> None:
    """The machine in the middle has its own certificate, which sslmode=require does not check."""

    def new_certificate() -> ServerTls:
        return certificate(tmp_path, ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())

    server, own = serve_with(tls=new_certificate(), verifiers=VERIFIERS), new_certificate()
    with TlsInBetween(server.port, own.context) as between:
        conninfo = f"port={between.port} sslmode=require sslrootcert='' password={PASSWORD} "
        for mode in ("require", "prefer"):
            with Libpq(server, conninfo + f"channel_binding={mode}") as client:
                assert "SCRAM channel binding check failed" in client.error
            assert "channel binding check failed" in server.refusal()
        with Libpq(server, conninfo + "channel_binding=disable") as client:
            assert client.error == "", "he sees all of it: so much for sslmode=require alone"


class TlsInBetween(LocalListener):
    """Ends TLS with its own certificate, and begins TLS again towards the server."""

    def __init__(self, server_port: int, context: ssl.SSLContext) -> None:
        super().__init__()
        self._server_port = server_port
        self._context = context
        self._outward = ssl.create_default_context()
        self._outward.check_hostname = False
        self._outward.verify_mode = ssl.CERT_NONE

    def __enter__(self) -> TlsInBetween:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def serve_client(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._server_port)) as server:
            client.recv(8, socket.MSG_WAITALL)
            client.sendall(b"S")
            server.sendall(SSLRequest().encode())
            assert server.recv(1) == b"S"
            with (
                self._context.wrap_socket(client, server_side=True) as inner,
                self._outward.wrap_socket(server) as outer,
            ):
                other = {inner: outer, outer: inner}
                while True:
                    for end in select.select([inner, outer], [], [], TIMEOUT_S)[0]:
                        try:
                            data = end.recv(65536)
                            other[end].sendall(data)
                        except OSError:
                            data = b""
                        if not data:
                            return
