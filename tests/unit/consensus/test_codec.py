"""Every message survives encoding and decoding; no bytes raise anything but MessageError."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from values import (
    ID,
    INSTANCE,
    MEMBERSHIP,
    NODE_ID,
    STAMP,
    TERM_HISTORY,
    TLI_HISTORY,
    U32,
    U64,
)

from quorum_wal.consensus.codec import decode_proposer_message, decode_safekeeper_message, encode
from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import MEMBERS_MAX, Membership, Stamp
from quorum_wal.consensus.membership_codec import encode_membership
from quorum_wal.consensus.messages import (
    Append,
    AppendResponse,
    Configure,
    Elected,
    Follow,
    HotStandbyFeedback,
    ProposerGreeting,
    SafekeeperGreeting,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)

WAL = st.binary(max_size=64)
#: An Elected up to its term history.
ELECTED_HEAD = b"e" + bytes(24 + 8 + 8) + encode_membership(Membership(Stamp.FIRST, (1, 2, 3)))


def append(wal: bytes, begin: int, **fields: Any) -> Append:
    return Append(begin_lsn=begin, end_lsn=begin + len(wal), wal=wal, **fields)


PROPOSER_MESSAGES = st.one_of(
    st.builds(
        ProposerGreeting,
        U32,
        st.builds(TimelineId, ID, ID),
        st.builds(ServerFacts, U64, U32, U32),
        ID,
    ),
    st.builds(VoteRequest, STAMP, NODE_ID),
    st.builds(Elected, NODE_ID, U64, U64, MEMBERSHIP, TERM_HISTORY, TLI_HISTORY),
    st.builds(Configure, NODE_ID, MEMBERSHIP),
    st.builds(Follow, U32, NODE_ID, st.text(max_size=60), st.integers(0, 0xFFFF)),
    st.builds(
        append,
        WAL,
        st.integers(0, 2**63),
        generation=U32,
        node_id=NODE_ID,
        record_end_lsn=U64,
        commit_lsn=U64,
        truncate_lsn=U64,
    ),
)
FEEDBACK = st.builds(HotStandbyFeedback, st.integers(-(2**63), 2**63 - 1), U32, U32, U32, U32)
SAFEKEEPER_MESSAGES = st.one_of(
    st.builds(SafekeeperGreeting, U64, INSTANCE, st.booleans(), NODE_ID, MEMBERSHIP),
    st.builds(
        VoteResponse,
        *(st.booleans(), NODE_ID, U64, U64, U64, U64),
        *(MEMBERSHIP, TERM_HISTORY, TLI_HISTORY),
    ),
    st.builds(AppendResponse, U32, NODE_ID, U64, U64, U64, U64, FEEDBACK),
)


@given(PROPOSER_MESSAGES)
def test_proposer_messages_survive(message: Any) -> None:
    assert decode_proposer_message(encode(message)) == message


@given(SAFEKEEPER_MESSAGES)
def test_safekeeper_messages_survive(message: Any) -> None:
    assert decode_safekeeper_message(encode(message)) == message


@given(st.one_of(PROPOSER_MESSAGES, SAFEKEEPER_MESSAGES), st.data())
def test_mutated_messages_raise_message_error_only(message: Any, data: st.DataObject) -> None:
    payload = bytearray(encode(message))
    for _ in range(data.draw(st.integers(0, 3))):
        if payload:
            payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut]), bytes(payload) + b"\0"):
        for decode in (decode_proposer_message, decode_safekeeper_message):
            try:
                decode(damaged)
            except MessageError:
                continue  # the only exception that is allowed


@given(st.binary(max_size=200))
def test_random_bytes_raise_message_error_only(payload: bytes) -> None:
    for decode in (decode_proposer_message, decode_safekeeper_message):
        try:
            decode(payload)
        except MessageError:
            continue  # the only exception that is allowed


@given(st.one_of(PROPOSER_MESSAGES, SAFEKEEPER_MESSAGES))
def test_cut_messages_are_refused(message: Any) -> None:
    payload = encode(message)
    decode = decode_proposer_message if payload[:1] in b"gvecfa" else decode_safekeeper_message
    with pytest.raises(MessageError):
        decode(payload[:-1] if not isinstance(message, Append) else payload[:60])


def test_a_huge_count_is_refused_before_anything_is_allocated() -> None:
    with pytest.raises(MessageError, match="4294967295 entries"):
        decode_proposer_message(ELECTED_HEAD + b"\xff\xff\xff\xff")


@pytest.mark.parametrize("count", [0, MEMBERS_MAX + 1, 255])
def test_an_impossible_count_of_members_is_refused(count: int) -> None:
    ids = b"".join(number.to_bytes(8, "big") for number in range(1, count + 1))
    stamp = encode(VoteRequest(Stamp.FIRST, NodeId.ZERO))[1:29]
    payload = b"c" + bytes(24) + stamp + bytes([count]) + ids + b"\0\0"
    with pytest.raises(MessageError, match=f"expected 1 to 9 members, got {count}"):
        decode_proposer_message(payload)


@pytest.mark.parametrize("line", ["9" * 5000 + "\t0/0\tno", "\u0661\t0/0\tno", "1\t0/0\tno"])
def test_a_timeline_history_of_the_wire_raises_message_error_only(line: str) -> None:
    """Thousands of digits, or digits of another script, or an id that is not its parent's."""
    text = line.encode()
    payload = ELECTED_HEAD + b"\0\0\0\0" + b"\0\0\0\1" + len(text).to_bytes(4, "big") + text
    with pytest.raises(MessageError, match="timeline history of 1"):
        decode_proposer_message(payload)
