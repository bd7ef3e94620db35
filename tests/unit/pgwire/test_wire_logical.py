"""The messages of a logical stream: bytes that Postgres 15.20 sent, and bytes that it never sends.

The golden bytes come from pg_logical_slot_peek_binary_changes of a two-phase slot of pgoutput, with
proto_version 3 and an empty publication.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.logical import (
    BeginPrepare,
    CommitPrepared,
    LogicalMessage,
    Prepare,
    RollbackPrepared,
    parse_logical_message,
)

GID = "skq1.d.19c1f0a3e55.1-16b374d848-2f1-1.019c1f0a3e557b2c8d0e4f6a7b8c9d0e"
GID_HEX = f"{GID.encode().hex()}00"
# pg_prepared_xacts showed 2026-11-24 10:05:28.888038+00 for it.
PREPARED_US = 1_795_514_728_888_038 - 946_684_800_000_000
OTHER_HEX = "6f7468657200"

GOLDEN = [
    (
        f"6200000000015284400000000001528578000304019e62d6e6000002d7{GID_HEX}",
        BeginPrepare(0x1528440, 0x1528578, PREPARED_US, 727, GID),
    ),
    (
        f"500000000000015284400000000001528578000304019e62d6e6000002d7{GID_HEX}",
        Prepare(0x1528440, 0x1528578, PREPARED_US, 727, GID),
    ),
    (
        f"4b0000000000015286b00000000001528728000304019e633fef000002d7{GID_HEX}",
        CommitPrepared(0x15286B0, 0x1528728, PREPARED_US + 26_889, 727, GID),
    ),
    (
        "720000000000015286b000000000015287d0000304019e63336c000304019e636288000002d8" + OTHER_HEX,
        RollbackPrepared(
            0x15286B0, 0x15287D0, PREPARED_US + 23_686, PREPARED_US + 35_746, 728, "other"
        ),
    ),
]


@pytest.mark.parametrize(("sent", "message"), GOLDEN, ids=lambda value: type(value).__name__)
def test_what_postgres_sends(sent: str, message: LogicalMessage) -> None:
    assert parse_logical_message(bytes.fromhex(sent)) == message
    assert message.encode().hex() == sent


def test_a_streamed_prepare_differs_by_its_letter() -> None:
    message = Prepare(1, 2, 3, 4, "g", is_streamed=True)
    assert message.encode()[:1] == b"p"
    assert parse_logical_message(message.encode()) == message


@pytest.mark.parametrize("kind", "BCORYIUDTMSEcA")
def test_other_messages_are_ignored(kind: str) -> None:
    assert parse_logical_message(kind.encode() + bytes(30)) is None


@pytest.mark.parametrize("sent", [b"", b"?", b"k" + bytes(17), b"\x00"])
def test_an_unknown_message_is_refused(sent: bytes) -> None:
    with pytest.raises(ProtocolError, match="unexpected logical message type"):
        parse_logical_message(sent)


@pytest.mark.parametrize(("sent", "_"), GOLDEN, ids=["b", "P", "K", "r"])
def test_every_cut_is_refused(sent: str, _: LogicalMessage) -> None:
    whole = bytes.fromhex(sent)
    for size in range(1, len(whole)):
        with pytest.raises(ProtocolError):
            parse_logical_message(whole[:size])


@pytest.mark.parametrize("kind", [b"P", b"K", b"r"])
def test_unknown_flags_are_refused(kind: bytes) -> None:
    with pytest.raises(ProtocolError, match="expected flags 0, got 0x1"):
        parse_logical_message(kind + b"\x01" + b"\x01" * 44 + b"g\0")


def test_a_position_of_zero_is_refused() -> None:
    for message in (Prepare(0, 1, 2, 3, "g"), CommitPrepared(1, 0, 2, 3, "g")):
        with pytest.raises(ProtocolError, match="a position is 0/0"):
            parse_logical_message(message.encode())


@pytest.mark.parametrize("end", [b"\0", b"g", b"g\0h\0", b"g" * 200 + b"\0"])
def test_a_gid_has_1_to_199_bytes_and_a_zero(end: bytes) -> None:
    whole = Prepare(1, 2, 3, 4, "g").encode()
    with pytest.raises(ProtocolError, match="expected a gid of 1 to 199 bytes"):
        parse_logical_message(whole[:-2] + end)


def test_a_gid_of_another_encoding_comes_and_goes_unchanged() -> None:
    whole = Prepare(1, 2, 3, 4, "g").encode()[:-2] + b"\xe9t\xe9\0"
    message = parse_logical_message(whole)
    assert message is not None
    assert message.encode() == whole


LSN = st.integers(1, (1 << 64) - 1)
TIME = st.integers(-(1 << 63), (1 << 63) - 1)
XID = st.integers(0, (1 << 32) - 1)
GIDS = st.text(st.characters(exclude_characters="\0", codec="ascii"), min_size=1, max_size=199)
MESSAGES = st.one_of(
    st.builds(BeginPrepare, LSN, LSN, TIME, XID, GIDS),
    st.builds(Prepare, LSN, LSN, TIME, XID, GIDS, st.booleans()),
    st.builds(CommitPrepared, LSN, LSN, TIME, XID, GIDS),
    st.builds(RollbackPrepared, LSN, LSN, TIME, TIME, XID, GIDS),
)


@given(MESSAGES)
def test_encoded_messages_are_parsed_back(message: LogicalMessage) -> None:
    assert parse_logical_message(message.encode()) == message
