"""The operations as HTTP routes: their paths, and the status code of each error.

    200  done                        409  refused: GenerationRefused
    400  the request is invalid      503  the database is unavailable: repeating is safe
    401  a token is required         403  no tokens are configured: local requests only

All answers but 200 have {"error": "...", "hint": "..." or null}. Requests of nodes need either
token, all others the administrator's token.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import structlog
from msgspec import Struct

from quorum_wal.generations.errors import GenerationError, GenerationRefused, RequestInvalid
from quorum_wal.generations.messages import (
    Advance,
    AttachTenant,
    DetachTenant,
    FenceTenant,
    ListAttached,
    MoveTenant,
    NameTimeline,
    Refusal,
    RegisterNode,
    Request,
    Validate,
    Validation,
    decode_request,
)
from quorum_wal.generations.metrics import RequestCounts
from quorum_wal.generations.protocol import GenerationService
from quorum_wal.generations.suffix import Suffix
from quorum_wal.telemetry.status_server import Answer, Route

R = TypeVar("R", bound=Request)

log = structlog.get_logger()

REGISTER_PATH = "/v1/register/node"
ATTACHED_PATH = "/v1/attached"
VALIDATE_PATH = "/v1/validate"
CREATE_TIMELINE_PATH = "/v1/timeline/create"
DELETE_TIMELINE_PATH = "/v1/timeline/delete"
ADVANCE_PATH = "/v1/advance"
ATTACH_PATH = "/v1/attach"
DETACH_PATH = "/v1/detach"
MOVE_PATH = "/v1/move"
FENCE_PATH = "/v1/fence/tenant"

#: Limit for one request; 90 bytes each, within the body size limit of the port.
VALIDATE_TENANTS_MAX = 5_000


class GenerationRoutes:
    """Calls `service`, and counts each request in `counts`."""

    def __init__(self, service: GenerationService, counts: RequestCounts) -> None:
        self._service = service
        self._counts = counts

    @property
    def routes(self) -> tuple[Route, ...]:
        service = self._service
        return (
            self._node(
                REGISTER_PATH,
                RegisterNode,
                lambda r: service.register_node(r.node_id, r.incarnation),
            ),
            self._node(
                ATTACHED_PATH,
                ListAttached,
                lambda r: service.attached(r.node_id, r.node_generation),
            ),
            self._node(VALIDATE_PATH, Validate, self._validate),
            self._node(
                CREATE_TIMELINE_PATH,
                NameTimeline,
                lambda r: service.create_timeline(r.tenant, r.timeline),
            ),
            self._node(
                DELETE_TIMELINE_PATH,
                NameTimeline,
                lambda r: service.delete_timeline(r.tenant, r.timeline),
            ),
            self._node(
                ADVANCE_PATH,
                Advance,
                lambda r: service.advance(r.tenant, _suffix(r.suffix), is_own=r.is_own),
            ),
            self._admin(ATTACH_PATH, AttachTenant, lambda r: service.attach(r.tenant, r.node_id)),
            self._admin(DETACH_PATH, DetachTenant, lambda r: service.detach(r.tenant, r.node_id)),
            self._admin(MOVE_PATH, MoveTenant, lambda r: service.move(r.tenant, r.node_id, r.mode)),
            self._admin(
                FENCE_PATH, FenceTenant, lambda r: service.fence_tenant(r.tenant, r.node_id)
            ),
        )

    def _node(self, path: str, kind: type[R], ask: Callable[[R], Struct]) -> Route:
        return Route("POST", path, lambda body: self._answer(path, body, kind, ask), False)

    def _admin(self, path: str, kind: type[R], ask: Callable[[R], Struct]) -> Route:
        return Route("POST", path, lambda body: self._answer(path, body, kind, ask))

    def _validate(self, request: Validate) -> Validation:
        if len(request.tenants) > VALIDATE_TENANTS_MAX:
            raise RequestInvalid(
                f"expected at most {VALIDATE_TENANTS_MAX} tenants in a request, found "
                f"{len(request.tenants)}"
            )
        found = self._service.validate(request.node_id, request.node_generation, request.tenants)
        invalid = sum(not each.is_valid for each in found.tenants)
        self._counts.count_invalid(not found.is_node_valid, invalid)
        return found

    def _answer(self, path: str, body: bytes, kind: type[R], ask: Callable[[R], Struct]) -> Answer:
        operation, begun = path.removeprefix("/v1/"), time.monotonic()
        outcome = "failed"
        try:
            answer = Answer(HTTPStatus.OK, ask(decode_request(body, kind)))
            outcome = "done"
        except GenerationRefused as error:
            outcome = "refused"
            is_invalid = isinstance(error, RequestInvalid)
            answer = _refusal(HTTPStatus.BAD_REQUEST if is_invalid else HTTPStatus.CONFLICT, error)
        except GenerationError as error:
            log.error("request failed", operation=operation, reason=str(error))
            answer = _refusal(HTTPStatus.SERVICE_UNAVAILABLE, error)
        finally:
            self._counts.count(operation, outcome, time.monotonic() - begun)
        return answer


def _suffix(text: str) -> Suffix:
    """Raises RequestInvalid."""
    try:
        return Suffix.parse(text)
    except GenerationError as error:
        raise RequestInvalid(str(error)) from error


def _refusal(status: HTTPStatus, error: GenerationError) -> Answer:
    return Answer(status, Refusal(str(error), error.hint or None))
