"""`request_vote`: asks a safekeeper for its vote, as a proposer does."""

from __future__ import annotations

import secrets
import select
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from quorum_wal.consensus.codec import decode_safekeeper_message, encode
from quorum_wal.consensus.ids import ID_BYTES, NodeId, TimelineId, parse_id
from quorum_wal.consensus.membership_page import membership_of_page
from quorum_wal.consensus.messages import (
    PROTOCOL_VERSION,
    ProposerGreeting,
    ProposerMessage,
    SafekeeperGreeting,
    SafekeeperMessage,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.walproposer.errors import Unreachable
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.copy_connection import CopyConnection
from quorum_wal.walproposer.stream.peer import open_push


def request_vote(address: SafekeeperAddress, status: Mapping[str, Any]) -> VoteResponse:
    """Greets, and asks for the vote in the next term. `status` is the timeline's status page.

    Raises Unreachable while the safekeeper does not listen yet.
    """
    timeline = TimelineId(
        parse_id(status["tenant_id"], "tenant id"), parse_id(status["timeline_id"], "timeline id")
    )
    proposer_uuid = secrets.token_bytes(ID_BYTES)
    stamp = membership_of_page(status["membership"]).stamp
    server = ServerFacts(int(status["system_id"]), status["pg_version"], status["wal_seg_size"])
    with closing(open_push(address, timeline, "")) as connection:
        hello = ProposerGreeting(PROTOCOL_VERSION, timeline, server, proposer_uuid)
        greeting = _ask(connection, hello)
        assert isinstance(greeting, SafekeeperGreeting), greeting
        node_id = NodeId(greeting.promised.term + 1, proposer_uuid)
        vote = _ask(connection, VoteRequest(stamp, node_id))
        assert isinstance(vote, VoteResponse), vote
        return vote


def _ask(connection: CopyConnection, message: ProposerMessage) -> SafekeeperMessage:
    connection.send(encode(message))
    while True:
        for payload in connection.receive():
            return decode_safekeeper_message(payload)
        if connection.end is not None:
            raise Unreachable(f"the safekeeper ended the stream: {connection.end}")
        select.select([connection], [], [])
