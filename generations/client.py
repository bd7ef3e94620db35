"""The blocking client of a generation service. Each call opens a connection of its own.

A call is tried once: the caller decides how long to wait, and whether the question still applies.
Laws: the token is never sent in clear text to another machine. A tenant is valid only if an answer
says so: a missing tenant or an unreadable answer never counts as valid.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from quorum_wal.generations import routes
from quorum_wal.generations.errors import (
    GenerationError,
    GenerationRefused,
    GenerationServiceUnavailable,
    RequestInvalid,
)
from quorum_wal.generations.messages import (
    Advance,
    AttachmentMode,
    AttachTenant,
    DetachTenant,
    FenceTenant,
    GenerationStatus,
    ListAttached,
    MoveTenant,
    NameTimeline,
    NodeAttachments,
    NodeRegistration,
    Refusal,
    RegisterNode,
    TenantGeneration,
    TenantState,
    TenantValidity,
    TimelineIntent,
    Validate,
    Validation,
    decode_answer,
)
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.suffix import Suffix
from quorum_wal.telemetry.http_token import read_http_token
from quorum_wal.telemetry.loopback import is_loopback
from quorum_wal.telemetry.watched_files import WatchedFiles

T = TypeVar("T")

#: For connecting, and for each wait for bytes of an answer. The service's database limit is 10 s.
TIMEOUT_SECONDS = 15.0
BODY_BYTES_MAX = 64 * 1024 * 1024

_SCHEMES = ("http", "https")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """`http://host:port` or `https://host:port`."""

    is_encrypted: bool
    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> ServiceAddress:
        """Raises GenerationError; its text never contains a password."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        is_plain = parts.path in ("", "/") and not (parts.query or parts.fragment)
        if (
            parts.scheme not in _SCHEMES
            or not parts.hostname
            or "@" in parts.netloc
            or not is_plain
        ):
            raise GenerationError("expected a service URL https://host:port")
        if not all(character.isprintable() and character != " " for character in parts.hostname):
            raise GenerationError("expected a service URL https://host:port")
        return cls(parts.scheme == "https", parts.hostname, port or _PORTS[parts.scheme])

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}"


class GenerationClient(GenerationService):
    """Rereads the token and CA files when they change."""

    def __init__(
        self,
        url: str,
        *,
        token_file: Path | None = None,
        ca_file: Path | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> None:
        """`ca_file`: the CA of the service's certificate; by default the CAs of the system.

        Raises GenerationError if the URL or a file cannot be used.
        """
        self.address = ServiceAddress.parse(url)
        self._timeout_seconds = timeout_seconds
        self._token = self._tls = None
        if token_file is not None and not self._is_private:
            raise GenerationError(
                f"{self.address} does not use TLS, and a token must not be sent in clear text",
                hint="Use an https:// URL.",
            )
        if token_file is not None:
            self._token = _watched("token", token_file, load=lambda: read_http_token(token_file))
        if self.address.is_encrypted:
            files = [] if ca_file is None else [ca_file]
            what = "certificate authority"
            self._tls = _watched(what, *files, load=lambda: _tls_context(ca_file))

    @property
    def _is_private(self) -> bool:
        return self.address.is_encrypted or is_loopback(self.address.host)

    def close(self) -> None:
        """There is no connection to close."""

    # ---- for pageservers

    def register_node(self, node_id: int, incarnation: str) -> NodeRegistration:
        request = RegisterNode(node_id, incarnation)
        return self._post(routes.REGISTER_PATH, request, NodeRegistration)

    def attached(self, node_id: int, node_generation: int) -> NodeAttachments:
        request = ListAttached(node_id, node_generation)
        return self._post(routes.ATTACHED_PATH, request, NodeAttachments)

    def validate(
        self, node_id: int, node_generation: int, tenants: Iterable[TenantGeneration]
    ) -> Validation:
        """Splits a large question into several requests. The node is valid if all answers say
        so."""
        asked = tuple(tenants)
        is_node_valid, found = True, dict[TenantGeneration, TenantValidity]()
        for part in _parts(asked, routes.VALIDATE_TENANTS_MAX):
            request = Validate(node_id, node_generation, part)
            answer = self._post(routes.VALIDATE_PATH, request, Validation)
            is_node_valid = is_node_valid and answer.is_node_valid
            for each in answer.tenants:
                found[TenantGeneration(each.tenant, each.attachment_generation)] = each
        validities = []
        for question in asked:
            missing = TenantValidity(question.tenant, question.attachment_generation, False, None)
            each = found.get(question, missing)
            validities.append(
                TenantValidity(
                    each.tenant,
                    each.attachment_generation,
                    each.is_valid and is_node_valid,
                    each.mode,
                )
            )
        return Validation(node_id, node_generation, is_node_valid, tuple(validities))

    def create_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        request = NameTimeline(tenant, timeline)
        return self._post(routes.CREATE_TIMELINE_PATH, request, TimelineIntent)

    def delete_timeline(self, tenant: str, timeline: str) -> TimelineIntent:
        request = NameTimeline(tenant, timeline)
        return self._post(routes.DELETE_TIMELINE_PATH, request, TimelineIntent)

    # ---- for administrators

    def attach(self, tenant: str, node_id: int) -> TenantState:
        return self._post(routes.ATTACH_PATH, AttachTenant(tenant, node_id), TenantState)

    def move(
        self, tenant: str, node_id: int, mode: AttachmentMode = AttachmentMode.SINGLE
    ) -> TenantState:
        return self._post(routes.MOVE_PATH, MoveTenant(tenant, node_id, mode), TenantState)

    def detach(self, tenant: str, node_id: int) -> TenantState:
        return self._post(routes.DETACH_PATH, DetachTenant(tenant, node_id), TenantState)

    def fence_tenant(self, tenant: str, node_id: int | None = None) -> TenantState:
        return self._post(routes.FENCE_PATH, FenceTenant(tenant, node_id), TenantState)

    def advance(self, tenant: str, suffix: Suffix, *, is_own: bool = False) -> TenantState:
        request = Advance(tenant, str(suffix), is_own)
        return self._post(routes.ADVANCE_PATH, request, TenantState)

    def status(self) -> GenerationStatus:
        page = decode_answer(self._ask("GET", "/status", None), _StatusPage)
        if page.generations is None:
            raise GenerationServiceUnavailable(f"{self.address}: {page.error or 'no status'}")
        return page.generations

    # ---- HTTP

    def _post(self, path: str, request: Struct, kind: type[T]) -> T:
        try:
            body = msgspec.json.encode(request)
        except (OverflowError, UnicodeError) as error:
            raise RequestInvalid(f"invalid request: {error}") from error
        return decode_answer(self._ask("POST", path, body), kind)

    def _ask(self, method: str, path: str, body: bytes | None) -> bytes:
        """The body of an answer with status 200. Raises GenerationError."""
        headers = {"Connection": "close", "Content-Type": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token.current()}"
        try:
            with closing(self._connection()) as connection:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                status, answer = response.status, response.read(BODY_BYTES_MAX)
        except (OSError, HTTPException, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise GenerationServiceUnavailable(
                f"generation service {self.address} is unavailable: {' '.join(reason.split())}",
                hint="Start the service, or correct its URL.",
            ) from error
        if status == HTTPStatus.OK:
            return answer
        raise self._error(status, answer)

    def _connection(self) -> HTTPConnection:
        address, timeout = self.address, self._timeout_seconds
        if self._tls is None:
            return HTTPConnection(address.host, address.port, timeout=timeout)
        context = self._tls.current()
        return HTTPSConnection(address.host, address.port, timeout=timeout, context=context)

    def _error(self, status: int, body: bytes) -> GenerationError:
        if status == HTTPStatus.UNAUTHORIZED:
            wanted = "requires a token" if self._token is None else "does not accept the token"
            return GenerationRefused(
                f"generation service {self.address} {wanted}",
                hint="Specify the right token with --token-file.",
            )
        try:
            refusal = msgspec.json.decode(body, type=Refusal)
        except (msgspec.DecodeError, UnicodeDecodeError):
            text = body[:200].decode("utf-8", "replace")
            refusal = Refusal(
                f"{self.address} returned HTTP status {status}: {' '.join(text.split())}"
            )
        hint = refusal.hint or ""
        if status == HTTPStatus.BAD_REQUEST:
            return RequestInvalid(refusal.error, hint=hint)
        if status < HTTPStatus.INTERNAL_SERVER_ERROR:
            return GenerationRefused(refusal.error, hint=hint)
        return GenerationServiceUnavailable(refusal.error, hint=hint)


class _StatusPage(Struct, frozen=True):
    error: str = ""
    generations: GenerationStatus | None = None


#: Prepared by the import: see `messages.py`.
_PREPARED = msgspec.json.Decoder(_StatusPage)


def _parts(
    asked: tuple[TenantGeneration, ...], count_max: int
) -> Iterator[tuple[TenantGeneration, ...]]:
    """At least one part, because the request also validates the node."""
    rest = iter(asked)
    yield tuple(islice(rest, count_max))
    while part := tuple(islice(rest, count_max)):
        yield part


def _watched(what: str, *files: Path, load: Callable[[], T]) -> WatchedFiles[T]:
    try:
        return WatchedFiles(files, load)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        names = ", ".join(map(str, files))
        raise GenerationError(f'could not read the {what} "{names}": {reason}') from error


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    """Raises OSError."""
    return ssl.create_default_context(cafile=ca_file)
