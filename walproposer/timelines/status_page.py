"""Reads the status page of a safekeeper or a proposer over HTTP.

A service names its page `host:port`, or `https://host:port`. A wildcard host means the host under
which the service itself was reached. TLS follows the libpq settings of the safekeeper connections
(sslmode, sslrootcert). Law: the token is sent only if the page requests it, and never in clear text
to another machine. Law: the answer is not trusted. Its size and its time are limited, and an answer
that is not a JSON object raises Unreachable.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Event, Timer
from typing import Any, TypeVar

import msgspec
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from quorum_wal.pgwire.transport import shut_down
from quorum_wal.telemetry.loopback import is_loopback
from quorum_wal.walproposer.connection import port_number
from quorum_wal.walproposer.errors import Unreachable

T = TypeVar("T")

#: For the connection, and for each part of the answer.
TIMEOUT_SECONDS = 3.0
#: For the whole answer: a server may send a byte now and then for ever.
ANSWER_SECONDS_MAX = 10.0

#: The end of the error of a page that requests a token when none was given.
TOKEN_MISSING = "requests a token: give --http-token-file"

WILDCARD_HOSTS = ("", "0.0.0.0", "::")
TLS_MODES = ("require", "verify-ca", "verify-full")
_HTTPS = "https://"


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """Of an answer. `parts_max` limits its objects and lists. While Python makes a million of them,
    no other thread runs for most of a second; for twenty millions it was more than a minute."""

    bytes_max: int
    parts_max: int


#: A safekeeper reports each of its timelines: some KiB and 50 parts each.
SAFEKEEPER_LIMITS = AnswerLimits(64 * 1024 * 1024, 1_000_000)
#: A proposer reports one timeline. Its page is read in services, and commits may wait meanwhile.
PROPOSER_LIMITS = AnswerLimits(1024 * 1024, 10_000)


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


def read_status_page(
    page: PageAddress,
    access: PageAccess,
    limits: AnswerLimits = SAFEKEEPER_LIMITS,
    kind: Any = dict[str, Any],
) -> dict[str, Any]:
    """The JSON of /status. `kind`: a TypedDict with the fields that are needed; the others are not
    decoded. Raises Unreachable."""
    request = _Request("GET", "/status", None, limits, kind)
    code, status = _with_or_without_tls(page, lambda tls: _read(page, access, tls, request))
    if code != HTTPStatus.OK:
        raise Unreachable(f"status page {page} answers {_code_text(code)}")
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
    limits: AnswerLimits = SAFEKEEPER_LIMITS
    kind: Any = dict[str, Any]


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
        wanted = "requests another token" if access.token else TOKEN_MISSING
        raise Unreachable(
            f"status page {page} {wanted}",
            hint="Give the file that the service has as its --http-token-file.",
        )
    if body.count(b"[") + body.count(b"{") > request.limits.parts_max:
        raise ValueError(f"expected at most {request.limits.parts_max} objects and lists, got more")
    try:
        answer: dict[str, Any] = msgspec.json.decode(body, type=request.kind)
    except msgspec.ValidationError as error:
        raise Unreachable(f"status page {page} is invalid: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        text = body[:200].decode("utf-8", "replace").strip()
        raise Unreachable(f"status page {page} answers {_code_text(code)}: {text}") from error
    return code, answer


def _code_text(code: int) -> str:
    """A server may answer with a number that has no name."""
    return f"{code} {HTTPStatus(code).phrase}" if code in set(HTTPStatus) else str(code)


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
        connection.connect()
        with _limited_time(connection):
            headers = {"Connection": "close", "Content-Type": "application/json", **headers}
            connection.request(request.method, request.path, request.body, headers)
            response = connection.getresponse()
            body = response.read(request.limits.bytes_max + 1)
    if len(body) > request.limits.bytes_max:
        raise ValueError(f"expected at most {request.limits.bytes_max} bytes, got more")
    return response.status, body


@contextmanager
def _limited_time(connection: HTTPConnection) -> Iterator[None]:
    """Raises TimeoutError if the block takes longer than ANSWER_SECONDS_MAX. The timeout of a
    socket is for each part of the answer only."""
    is_late, sock = Event(), connection.sock

    def expire() -> None:
        is_late.set()
        shut_down(sock)

    timer = Timer(ANSWER_SECONDS_MAX, expire)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (HTTPException, OSError) as error:
        if not is_late.is_set():
            raise
        raise TimeoutError(f"no complete answer within {ANSWER_SECONDS_MAX:g} s") from error
    finally:
        timer.cancel()
    if is_late.is_set():
        raise TimeoutError(f"no complete answer within {ANSWER_SECONDS_MAX:g} s")


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
