"""The server's side of TLS: its files, and the name in a client's certificate."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pgwire.certificate import end_point_hash, end_time
from quorum_wal.storage.private_file import check_private

ALPN = "postgresql"


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. With `client_ca`, a client's certificate must be signed by this authority."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(p for p in (self.certificate, self.key, self.client_ca) if p is not None)


@dataclass(frozen=True, slots=True)
class ServerTls:
    """The TLS context of a server. `certificate_hash` is for channel binding; None: the certificate
    has none. `end_time` is that of the first certificate in its file to end, in seconds since
    1970."""

    context: ssl.SSLContext
    certificate_hash: bytes | None
    end_time: int

    @classmethod
    def load(cls, files: TlsFiles) -> ServerTls:
        """Raises OSError, also if the certificate was replaced while it was read."""
        certificate = files.certificate.read_bytes()
        context = server_tls_context(files)
        if files.certificate.read_bytes() != certificate:
            raise OSError(f'certificate file "{files.certificate}" changed while it was read')
        try:
            return cls(context, end_point_hash(certificate), end_time(certificate))
        except ValueError as error:
            raise OSError(f'certificate file "{files.certificate}": {error}') from error


def server_tls_context(files: TlsFiles) -> ssl.SSLContext:
    """A context as Postgres configures it: at least TLS 1.2, its name in ALPN, no resumption.

    Raises OSError (ssl.SSLError is one) if the files cannot be used, NotPrivate if other users can
    read the key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols([ALPN])
    # With an empty passphrase, an encrypted key is an error, and not a prompt on the terminal.
    check_private(files.key)
    context.load_cert_chain(files.certificate, files.key, password="")
    if files.client_ca is not None:
        context.load_verify_locations(files.client_ca)
        # A certificate that is sent must be valid. Whether there is one is checked later, as in
        # Postgres, so that the client gets a readable error.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def certificate_name(sock: ssl.SSLSocket) -> str | None:
    """The common name in the client's certificate; None without one, or with several names."""
    certificate = sock.getpeercert() or {}
    subject = certificate.get("subject", ())
    names = [str(pair[1]) for part in subject for pair in part if pair[0] == "commonName"]
    return names[0] if len(names) == 1 else None
