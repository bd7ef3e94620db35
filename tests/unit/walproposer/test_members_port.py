"""The answers of the running proposer to requests about members, over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from change_steps import Change, ask, present, state, view
from proposer_steps import member

from quorum_wal.consensus.membership import UNKNOWN_INSTANCE, Member
from quorum_wal.walproposer.change_requests import OUTSIDE_PATH, PATH, ChangeRequests
from quorum_wal.walproposer.request_page import request_page
from quorum_wal.walproposer.stream.events import ChangeRequest, ChangeState, Event
from quorum_wal.walproposer.stream.incarnation import Incarnation


class Shell:
    """The parts of an incarnation that requests need; the test sets `is_leading`."""

    def __init__(self, change: Change) -> None:
        self.core = change.proposer
        self.peers = SimpleNamespace(addresses={})
        self.is_leading = True
        self.events: list[Event] = []

    def call(self, callback: Callable[[], None]) -> None:
        callback()

    def step(self, event: Event) -> None:
        self.events.append(event)
        self.core.step(event)


class Port:
    """The HTTP port of that one."""

    def __init__(self, change: Change) -> None:
        self.shell = Shell(change)
        requests = ChangeRequests(lambda: cast(Incarnation, self.shell))
        self._handlers = {(route.method, route.path): route.answer for route in requests.routes}

    def post(self, page: Any, path: str = PATH) -> tuple[int, Any]:
        return self.post_bytes(msgspec.json.encode(page), path)

    def post_bytes(self, body: bytes, path: str) -> tuple[int, Any]:
        answer = self._handlers["POST", path](body)
        return answer.status, answer.page

    def request(self, *wanted: Member, generation: int = 1) -> tuple[int, Any]:
        return self.post(request_page(ChangeRequest(generation, wanted)))


THREE = (member(1), member(2), member(3))
FOUR = member(4)


def test_the_same_request_again_is_the_same_change(change: Change) -> None:
    port = Port(change)
    for _ in range(2):
        assert port.request(*THREE, FOUR)[0] == HTTPStatus.ACCEPTED
    assert len(port.shell.events) == 1
    half_known = replace(FOUR, instance=UNKNOWN_INSTANCE, host="", port=0)
    assert port.request(*THREE, half_known)[0] == HTTPStatus.ACCEPTED


@pytest.mark.parametrize(
    "another",
    [
        replace(FOUR, instance=b"new disk"),
        replace(FOUR, host="elsewhere"),
        replace(FOUR, port=5455),
        replace(FOUR, site="b"),
    ],
    ids=["instance", "host", "port", "site"],
)
def test_the_same_ids_at_another_place_are_another_change(change: Change, another: Member) -> None:
    """The first 4 has died; a new one with its name is another safekeeper."""
    port = Port(change)
    port.request(*THREE, FOUR)
    status, page = port.request(*THREE, another)
    assert status == HTTPStatus.CONFLICT
    assert "safekeeper 4 at sk4:5454" in page["error"]
    assert "sk member cancel" in page["hint"]


def test_two_requests_that_move_different_members_are_not_both_done(change: Change) -> None:
    port = Port(change)
    one, other = replace(member(2), host="moved"), replace(member(3), host="moved")
    assert port.request(member(1), one, member(3))[0] == HTTPStatus.ACCEPTED
    assert port.request(member(1), member(2), other)[0] == HTTPStatus.CONFLICT


def test_a_request_that_waits_is_not_done_by_another_disk(change: Change) -> None:
    """It came before the election, which found 4 joining, as it was before it died."""
    change.enter(1, 2, 3, 4)
    change.proposer.pending.request = ChangeRequest(
        2, (*THREE, replace(FOUR, instance=b"new disk"))
    )
    change.inform(0, 1, 2, 3)
    change.inform(0, 1, 2, 3)
    change.tick()
    assert present(change.proposer).members == (1, 2, 3, 4)
    assert state(change.proposer) is ChangeState.REFUSED
    assert "another data directory" in view(change.proposer).error


def test_one_that_is_outside_is_named(change: Change) -> None:
    port = Port(change)
    assert port.post({"address": "sk9:5454"}, OUTSIDE_PATH)[0] == HTTPStatus.ACCEPTED
    assert change.proposer.peers[3].address == ("sk9", 5454)
    for page in ({}, {"address": "sk9"}, {"address": ""}, {"address": 7}, []):
        assert port.post(page, OUTSIDE_PATH)[0] == HTTPStatus.BAD_REQUEST


def test_an_outsider_cannot_be_named_to_a_proposer_that_does_not_lead(change: Change) -> None:
    port = Port(change)
    port.shell.is_leading = False
    status, _ = port.post({"address": "sk9:5454"}, OUTSIDE_PATH)
    assert status == HTTPStatus.SERVICE_UNAVAILABLE
    ask(change.proposer, 1, 2)
    assert port.shell.events == []


@pytest.mark.parametrize(
    "changes",
    [{"id": 3.0}, {"id": True}, {"id": 1 << 64}, {"id": "3"}, {"id": 0}, {"address": "a b:1"},
     {"address": "a,b:1"}, {"address": "/tmp:1"}, {"address": "a\n:1"}, {"site": 7}],
)  # fmt: skip
def test_a_member_that_no_message_can_name_is_refused(
    change: Change, changes: dict[str, Any]
) -> None:
    """The loop that commits go through would fail when it encodes the new members."""
    port = Port(change)
    page = request_page(ChangeRequest(1, (*THREE[:2], FOUR)))
    page["members"][2] |= changes
    status, answer = port.post(page)
    assert status == HTTPStatus.BAD_REQUEST, answer
    assert port.shell.events == []


@pytest.mark.parametrize("body", [b"[" * 100_000 + b"]" * 100_000, b'"\xff"', b"", b"{}", b"[1]"])
def test_a_body_that_is_no_request_is_refused(change: Change, body: bytes) -> None:
    port = Port(change)
    for path in (PATH, OUTSIDE_PATH):
        status, answer = port.post_bytes(body, path)
        assert (status, bool(answer["error"])) == (HTTPStatus.BAD_REQUEST, True)
    for address in ("a b:1", "a\x1b:1", "a,b:1"):
        assert port.post({"address": address}, OUTSIDE_PATH)[0] == HTTPStatus.BAD_REQUEST
    assert port.shell.events == []
