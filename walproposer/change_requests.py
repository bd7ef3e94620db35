"""The requests that the running proposer accepts: show the members, change them, cancel a change,
and send a safekeeper that is in no set the order to leave.

    HTTP's thread -> ChangeRequests -> between two events of the loop -> the core

Law: the loop's thread decides whether a request is valid and hands it over, so nothing can change
in between. It serves one request at a time. A repeated request refers to the same change, whether
that is in progress or done.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from http import HTTPStatus

import msgspec

from quorum_wal.consensus.errors import MessageError
from quorum_wal.telemetry.status_server import Answer, Route
from quorum_wal.walproposer.request_page import is_done, outsider_of_page, request_of_page
from quorum_wal.walproposer.status import members_status
from quorum_wal.walproposer.stream.events import (
    ChangeCancelled,
    ChangeRequest,
    ChangeRequested,
    ChangeState,
    OutsiderNamed,
)
from quorum_wal.walproposer.stream.incarnation import Incarnation

PATH = "/members"
CHANGE_PATH = "/members/change"
OUTSIDE_PATH = "/members/outside"
#: The loop takes a request between two events. If the loop is stalled, the client should ask again.
ANSWER_SECONDS = 5.0

#: What parsing a body raises: UnicodeDecodeError for a text that is not UTF-8, RecursionError for
#: one that is nested too deeply.
NOT_A_REQUEST = (MessageError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)
NO_LEADER = "no proposer leads this timeline now: it is waiting for its primary or for safekeepers"


class ChangeRequests:
    """`incarnation()` returns the running incarnation, or None."""

    def __init__(self, incarnation: Callable[[], Incarnation | None]) -> None:
        self._incarnation = incarnation

    @property
    def routes(self) -> tuple[Route, ...]:
        return (
            Route("GET", PATH, lambda _: self._show()),
            Route("POST", PATH, self._request),
            Route("DELETE", CHANGE_PATH, lambda _: self._cancel()),
            Route("POST", OUTSIDE_PATH, self._name_outsider),
        )

    def _show(self) -> Answer:
        incarnation = self._incarnation()
        page = members_status(incarnation) if incarnation is not None else None
        if page is None:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, NO_LEADER)
        return Answer(HTTPStatus.OK, page)

    def _request(self, body: bytes) -> Answer:
        try:
            request = request_of_page(msgspec.json.decode(body))
        except NOT_A_REQUEST as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        return self._on_loop(lambda incarnation: _take(incarnation, request))

    def _cancel(self) -> Answer:
        return self._on_loop(_cancel_change)

    def _name_outsider(self, body: bytes) -> Answer:
        try:
            host, port = outsider_of_page(msgspec.json.decode(body))
        except NOT_A_REQUEST as error:
            return _refusal(HTTPStatus.BAD_REQUEST, str(error))
        return self._on_loop(lambda incarnation: _add_outsider(incarnation, host, port))

    def _on_loop(self, work: Callable[[Incarnation], Answer]) -> Answer:
        incarnation = self._incarnation()
        if incarnation is None or not incarnation.is_leading:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, NO_LEADER)
        answer: Future[Answer] = Future()
        incarnation.call(lambda: answer.set_result(work(incarnation)))
        try:
            return answer.result(ANSWER_SECONDS)
        except TimeoutError:
            return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, NO_LEADER)


def _take(incarnation: Incarnation, request: ChangeRequest) -> Answer:
    core = incarnation.core
    membership, change = core.membership, core.change
    if membership is None or not incarnation.is_leading:
        return _refusal(HTTPStatus.SERVICE_UNAVAILABLE, NO_LEADER)
    is_under_way = change is not None and not change.is_finished
    if is_under_way and change is not None and change.wanted != request.ids:
        return _refusal(
            HTTPStatus.CONFLICT,
            f"another change is under way, to members {change.wanted}",
            "Wait for it to end, or cancel it: sk member cancel.",
        )
    if is_under_way and (difference := core.pending.difference(request, core.leader)):
        return _refusal(
            HTTPStatus.CONFLICT,
            f"another change is under way, to the same members, with {difference}",
            "Wait for it to end, or cancel it: sk member cancel.",
        )
    if is_under_way or is_done(request, membership):
        return _accepted(incarnation)
    if membership.generation != request.generation:
        return _refusal(
            HTTPStatus.CONFLICT,
            f"the members have generation {membership.generation}, the request was made for "
            f"{request.generation}",
            "Check the members (sk member list) and repeat the request.",
        )
    incarnation.step(ChangeRequested(request))
    return _accepted(incarnation)


def _add_outsider(incarnation: Incarnation, host: str, port: int) -> Answer:
    """The core decides whether to send the order to leave, when the safekeeper answers."""
    incarnation.step(OutsiderNamed(host, port))
    return _accepted(incarnation)


def _cancel_change(incarnation: Incarnation) -> Answer:
    """A change cannot be cancelled after the new set has been written."""
    change = incarnation.core.change
    if change is None or change.is_finished:
        return _refusal(HTTPStatus.CONFLICT, "no change is under way")
    if change.state in (ChangeState.LEAVING, ChangeState.TELLING):
        return _refusal(HTTPStatus.CONFLICT, "it is too late: the new members are already in force")
    incarnation.step(ChangeCancelled())
    return _accepted(incarnation)


def _accepted(incarnation: Incarnation) -> Answer:
    return Answer(HTTPStatus.ACCEPTED, members_status(incarnation))


def _refusal(status: HTTPStatus, error: str, hint: str = "") -> Answer:
    return Answer(status, {"error": error, "hint": hint or None})
