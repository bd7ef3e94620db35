"""A proposer under the control of a test: it sends any messages, lawful or not, to one safekeeper.

It uses libpq and the project's codec, so each message is well-formed. The test chooses the order
and the content.
"""

from __future__ import annotations

import select
import time
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from quorum_wal.consensus.codec import decode_safekeeper_message, encode
from quorum_wal.consensus.ids import NodeId, TimelineId, parse_id
from quorum_wal.consensus.membership import Membership, Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.messages import (
    PROTOCOL_VERSION,
    ProposerGreeting,
    ProposerMessage,
    SafekeeperMessage,
    ServerFacts,
)
from quorum_wal.pg_fixtures.safekeeper import SafekeeperProcess
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress, SafekeeperClient
from quorum_wal.walproposer.stream.peer import open_push

ANSWER_TIMEOUT = 30.0  # seconds


class HandWrittenProposer:
    """A context manager. It has run START_WAL_PUSH and sent no message.

    Raises WalProposerError if the safekeeper refuses the command.
    """

    def __init__(self, address: str, timeline: TimelineId) -> None:
        self._copy = open_push(SafekeeperAddress.parse(address), timeline, "")
        self._answers: list[SafekeeperMessage] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._copy.close()

    def send(self, *messages: ProposerMessage) -> None:
        for message in messages:
            self._copy.send(encode(message))

    def receive(self) -> SafekeeperMessage:
        """The next answer. Raises the WalProposerError that ended the stream, TimeoutError."""
        deadline = time.monotonic() + ANSWER_TIMEOUT
        while not self._answers:
            if self._copy.end is not None:
                raise self._copy.end
            if not select.select([self._copy], [], [], deadline - time.monotonic())[0]:
                raise TimeoutError("the safekeeper neither answers nor refuses")
            self._answers += map(decode_safekeeper_message, self._copy.receive())
        return self._answers.pop(0)

    def ask(self, message: ProposerMessage) -> SafekeeperMessage:
        """Send one message, and return the answer."""
        self.send(message)
        return self.receive()

    def refusal(self, *messages: ProposerMessage) -> WalProposerError:
        """Send, and return the error that ends the stream; answers before it are ignored."""
        self.send(*messages)
        try:
            while True:
                self.receive()
        except WalProposerError as error:
            return error


def command(address: str, name: str, **options: str) -> list[dict[str, str]]:
    """Run one of our commands on a safekeeper. Raises WalProposerError with the text of the
    error."""
    return SafekeeperClient(SafekeeperAddress.parse(address)).command(name, options)


def named(timeline: TimelineId) -> dict[str, str]:
    """The options that name a timeline."""
    return {"tenant_id": timeline.tenant_id.hex(), "timeline_id": timeline.timeline_id.hex()}


def first_membership(*members: int) -> Membership:
    """The membership of a timeline that is created on these safekeepers, without instances and
    addresses."""
    return Membership(Stamp.FIRST, members)


def membership_of(status: dict[str, Any]) -> Membership:
    """The membership in the status of a timeline."""
    return membership_of_page(status["membership"])


def create_timeline(
    address: str,
    timeline: TimelineId,
    server: ServerFacts,
    *,
    members: tuple[int, ...],
    start_lsn: int,
    activate: bool = True,
) -> None:
    """Both steps of a creation, on one safekeeper only."""
    command(
        address,
        "CREATE_TIMELINE",
        **named(timeline),
        system_id=str(server.system_id),
        pg_version=str(server.pg_version),
        wal_seg_size=str(server.wal_seg_size),
        start_lsn=str(Lsn(start_lsn)),
        tli="1",
        membership=encode_membership(first_membership(*members)).hex(),
    )
    if activate:
        command(address, "ACTIVATE_TIMELINE", **named(timeline))


# ---- values in a status


def timeline_id(status: dict[str, Any]) -> TimelineId:
    return TimelineId(
        parse_id(status["tenant_id"], "tenant id"), parse_id(status["timeline_id"], "timeline id")
    )


def node_id(status: dict[str, Any]) -> NodeId:
    """From `{"term": 1, "uuid": "..."}`."""
    return NodeId(status["term"], parse_id(status["uuid"], "proposer uuid"))


def lawful_greeting(status: dict[str, Any], **changes: Any) -> ProposerGreeting:
    """The greeting that a timeline with this status accepts, with some fields changed."""
    greeting = ProposerGreeting(
        protocol_version=PROTOCOL_VERSION,
        timeline=timeline_id(status),
        server=ServerFacts(int(status["system_id"]), status["pg_version"], status["wal_seg_size"]),
        proposer_uuid=b"written by hand!",
    )
    return replace(greeting, **changes)


def promise(safekeeper: SafekeeperProcess, timeline: TimelineId | None = None) -> NodeId:
    """The NodeId that a safekeeper has promised."""
    status = safekeeper.timeline(timeline.timeline_id.hex() if timeline else None)
    assert status is not None
    return node_id(status["promised"])
