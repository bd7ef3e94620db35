"""A secured installation: TLS with its own CA, SCRAM on the safekeepers' port, TLS and a token on
all HTTP ports."""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trustme
from psycopg.conninfo import make_conninfo

from quorum_wal.pg_fixtures.cluster import QuorumCluster
from quorum_wal.pg_fixtures.proposer import ProposerProcess
from quorum_wal.pg_fixtures.safekeeper import READY_TIMEOUT, SafekeeperProcess
from quorum_wal.pgwire.auth import make_verifier

TIMEOUT = 120.0
USER = "walproposer"
PASSWORD = "correct horse battery staple"
PRIMARY_PASSWORD = "Tr0ub4dor&3"
TOKEN = "0123456789-open-sesame"
#: The settings of connections between safekeepers.
PEER_USER = "chain"
PEER_PASSWORD = "staple battery horse correct"


@dataclass(frozen=True, slots=True)
class Secrets:
    """The files of a secured installation."""

    ca: Path
    certificate: Path
    key: Path
    user_file: Path
    token_file: Path
    passfile: Path
    verifier: str

    @property
    def server_arguments(self) -> list[str]:
        return [
            *("--tls-cert", str(self.certificate)),
            *("--tls-key", str(self.key)),
            *("--http-token-file", str(self.token_file)),
        ]

    def conninfo(self, **changes: str) -> str:
        """How to connect to a safekeeper."""
        trust = {"sslmode": "verify-full", "sslrootcert": str(self.ca), "gssencmode": "disable"}
        return make_conninfo("", **{**trust, "user": USER, **changes})


def write_secrets(folder: Path) -> Secrets:
    """Write the files into an existing folder."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    verifier = str(make_verifier(PASSWORD, b"0123456789abcdef"))
    peer_verifier = str(make_verifier(PEER_PASSWORD, b"fedcba9876543210"))
    files = Secrets(
        ca=folder / "ca.pem",
        certificate=folder / "certificate.pem",
        key=folder / "key.pem",
        user_file=folder / "users",
        token_file=folder / "token",
        passfile=folder / "passfile",
        verifier=verifier,
    )
    for secret in (files.key, files.token_file, files.user_file, files.passfile):
        secret.touch(mode=0o600)
    authority.cert_pem.write_to_path(str(files.ca))
    certificate.private_key_pem.write_to_path(str(files.key))
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    files.token_file.write_text(f"{TOKEN}\n")
    files.user_file.write_text(
        f"# who may come in\n{USER}:proposer:{verifier}\nreader:replica:{verifier}\n"
        f"watcher:monitor:{verifier}\n{PEER_USER}:proposer:{peer_verifier}\n"
    )
    passwords = {USER: PASSWORD, PEER_USER: PEER_PASSWORD}
    lines = [f"127.0.0.1:*:*:{user}:{password}\n" for user, password in passwords.items()]
    files.passfile.write_text("".join(lines))
    return files


def https_get(
    address: str, path: str, files: Secrets, token: str | None = TOKEN
) -> tuple[int, str]:
    """GET https://`address``path`; without a token if it is None."""
    context = ssl.create_default_context(cafile=files.ca)
    connection = http.client.HTTPSConnection(address, timeout=TIMEOUT, context=context)
    headers = {"Connection": "close"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


class SecuredSafekeeper(SafekeeperProcess):
    """Its pages need TLS and the token."""

    def __init__(self, id: int, data_dir: Path, files: Secrets, *arguments: str) -> None:
        self.files = files
        users = ("--user-file", str(files.user_file))
        super().__init__(id, data_dir, arguments=[*files.server_arguments, *users, *arguments])

    def wait_ready(self, timeout: float = READY_TIMEOUT) -> None:
        self.wait_until(self._is_ready, timeout, "/healthz to answer 200")

    def _is_ready(self) -> bool:
        try:
            return https_get(self.http_address, "/healthz", self.files, None)[0] == 200
        except OSError:
            return False

    def status(self) -> dict[str, Any]:
        return dict(json.loads(https_get(self.http_address, "/status", self.files)[1]))


class SecuredProposer(ProposerProcess):
    """Its pages need TLS and the token. The DSN of the primary, with the password, is in its
    environment."""

    def __init__(self, cluster: QuorumCluster, files: Secrets, *arguments: str) -> None:
        self.files = files
        super().__init__(
            "",
            [safekeeper.address for safekeeper in cluster.safekeepers],
            log_path=cluster.root / "secured-proposer.log",
            configure=True,
            arguments=[
                *("--safekeeper-conninfo", files.conninfo(passfile=str(files.passfile))),
                *files.server_arguments,
                *arguments,
            ],
            env={"SK_ATTACH_PRIMARY": cluster.postgres.dsn(password=PRIMARY_PASSWORD)},
        )
        at = self.program.index("--primary")
        del self.program[at : at + 2]

    def status(self) -> dict[str, Any]:
        return dict(json.loads(https_get(self.http_address, "/status", self.files)[1]))
