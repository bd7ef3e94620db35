"""Reads the status page of a safekeeper or a proposer over HTTP.

A service names its page `host:port`, or `https://host:port`. A wildcard host means the host under
which the service itself was reached. TLS follows the libpq settings of the safekeeper connections
(sslmode, sslrootcert). Law: the token is sent only if the page requests it, and never in clear text
to another machine.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.telemetry.loopback import is_loopback
from quorum_wal.walproposer.connection import port_number
from quorum_wal.walproposer.errors import Unreachable

T = TypeVar("T")

TIMEOUT_SECONDS = 3.0
BODY_BYTES_MAX = 64 * 1024 * 1024

WILDCARD_HOSTS = ("", "0.0.0.0", "::")
TLS_MODES = ("require", "verify-ca", "verify-full")
_HTTPS = "https://"


@dataclass(frozen=True, slots=True)
class PageAddress:
    """`encrypted` None: unknown; plain HTTP is tried first, then TLS."""

    host: str
    port: int
    encrypted: bool | None = None

    @classmethod
    def parse(cls, text: str, reached_host: str) -> PageAddress:
        """Parse the page address that a service reports. Raises Unreachable if it is invalid."""
        encrypted = True if text.startswith(_HTTPS) else None
        host, _, port = text.removeprefix(_HTTPS).removeprefix("http://").rpartition(":")
        number = port_number(port)
        if number is None:
            raise Unreachable(f'it reports an invalid status page: "{text}"')
        host = host.removeprefix("[").removesuffix("]")
        return cls(reached_host if host in WILDCARD_HOSTS else host, number, encrypted)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{_HTTPS if self.encrypted else ''}{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class PageAccess:
    """The libpq settings for the verification of TLS, and the token; "" if there is none."""

    conninfo: str = ""
    token: str = field(default="", repr=False)


def demands_tls(conninfo: str) -> bool:
    """Whether these settings forbid connections without TLS."""
    return _settings(conninfo).get("sslmode") in TLS_MODES


def read_status_page(page: PageAddress, access: PageAccess) -> dict[str, Any]:
    """The JSON of /status. Raises Unreachable."""
    code, status = ask_page(page, access, "GET", "/status")
    if code != HTTPStatus.OK:
        raise Unreachable(f"status page {page} answers {code} {HTTPStatus(code).phrase}")
    return status


def ask_page(
    page: PageAddress, access: PageAccess, method: str, path: str, body: bytes | None = None
) -> tuple[int, dict[str, Any]]:
    """The HTTP status and the JSON object of the answer. Raises Unreachable, also if the page
    requests a token that we do not have, or the answer is not JSON."""
    request = _Request(method, path, body)
    return _with_or_without_tls(page, lambda tls: _read(page, access, tls, request))


def page_url(page: PageAddress, access: PageAccess) -> str:
    """Where a browser finds the page for people; it asks for the token itself. Raises
    Unreachable."""

    def found(encrypted: bool) -> str:
        code, _ = _send(page, access, encrypted, _Request("GET", "/", None), {})
        if code not in (HTTPStatus.OK, HTTPStatus.UNAUTHORIZED):
            raise Unreachable(f"{page} has no page for browsers, it answers {code}")
        place = str(PageAddress(page.host, page.port))
        return f"{_HTTPS if encrypted else 'http://'}{place}/"

    return _with_or_without_tls(page, found)


def _with_or_without_tls(page: PageAddress, ask: Callable[[bool], T]) -> T:
    """Raises Unreachable."""
    for encrypted in (False, True) if page.encrypted is None else (page.encrypted,):
        try:
            return ask(encrypted)
        except (HTTPException, ConnectionResetError) as error:
            failure: Exception = error  # not HTTP: it may be TLS
        except (OSError, ValueError) as error:
            failure = error
            break
    reason = getattr(failure, "strerror", None) or str(failure) or type(failure).__name__
    raise Unreachable(f"status page {page} does not answer: {reason}") from failure


@dataclass(frozen=True, slots=True)
class _Request:
    method: str
    path: str
    body: bytes | None


def _read(
    page: PageAddress, access: PageAccess, encrypted: bool, request: _Request
) -> tuple[int, dict[str, Any]]:
    code, body = _send(page, access, encrypted, request, {})
    if code == HTTPStatus.UNAUTHORIZED and access.token:
        if not encrypted and not is_loopback(page.host):
            raise Unreachable(
                f"status page {page} requests the token, but has no TLS",
                hint="Start it with --tls-cert and --tls-key, or ask it on its own machine.",
            )
        headers = {"Authorization": f"Bearer {access.token}"}
        code, body = _send(page, access, encrypted, request, headers)
    if code == HTTPStatus.UNAUTHORIZED:
        wanted = "another token" if access.token else "a token: give --http-token-file"
        raise Unreachable(
            f"status page {page} requests {wanted}",
            hint="Give the file that the service has as its --http-token-file.",
        )
    try:
        answer: dict[str, Any] = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.DecodeError as error:
        text = body[:200].decode("utf-8", "replace").strip()
        raise Unreachable(
            f"status page {page} answers {code} {HTTPStatus(code).phrase}: {text}"
        ) from error
    return code, answer


def _send(
    page: PageAddress,
    access: PageAccess,
    encrypted: bool,
    request: _Request,
    headers: dict[str, str],
) -> tuple[int, bytes]:
    connection = (
        HTTPSConnection(
            page.host, page.port, timeout=TIMEOUT_SECONDS, context=_tls_context(access.conninfo)
        )
        if encrypted
        else HTTPConnection(page.host, page.port, timeout=TIMEOUT_SECONDS)
    )
    with closing(connection):
        headers = {"Connection": "close", "Content-Type": "application/json", **headers}
        connection.request(request.method, request.path, request.body, headers)
        response = connection.getresponse()
        return response.status, response.read(BODY_BYTES_MAX)


def _tls_context(conninfo: str) -> ssl.SSLContext:
    """Like libpq: below verify-ca nothing is verified, unless there is a root certificate."""
    settings = _settings(conninfo)
    mode, root = settings.get("sslmode", "prefer"), settings.get("sslrootcert", "")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = mode == "verify-full" or root == "system"
    if root == "system":
        context.load_default_certs()
    elif root or mode in ("verify-ca", "verify-full"):
        context.load_verify_locations(root or Path("~/.postgresql/root.crt").expanduser())
    else:
        context.verify_mode = ssl.CERT_NONE
    return context


def _settings(conninfo: str) -> dict[str, str]:
    """The settings that libpq would use: its defaults, the environment, the connection string."""
    defaults = {
        option.keyword.decode(): option.val.decode()
        for option in pq.Conninfo.get_defaults()
        if option.val is not None
    }
    return {**defaults, **{k: str(v) for k, v in conninfo_to_dict(conninfo).items()}}
