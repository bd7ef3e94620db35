"""The packets before the first message, the options in them, and newer protocols."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.pgwire.errors import ConnectionRefused, ProtocolError
from quorum_wal.pgwire.messages import NegotiateProtocolVersion
from quorum_wal.pgwire.startup import (
    CancelRequest,
    GSSENCRequest,
    SSLRequest,
    StartupMessage,
    StartupPacket,
    cancel_key_bytes,
    decode_encryption_answer,
    decode_startup_packet,
    format_options,
    negotiation,
    parse_options,
)

NO_ZERO_BYTES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@pytest.mark.parametrize(
    ("packet", "data"),
    [
        (SSLRequest(), b"\0\0\0\x08\x04\xd2\x16\x2f"),
        (GSSENCRequest(), b"\0\0\0\x08\x04\xd2\x16\x30"),
        (CancelRequest(7, b"4321"), b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x074321"),
        (StartupMessage({"user": "u"}), b"\0\0\0\x10\0\3\0\0user\0u\0\0"),
        (
            StartupMessage({"user": "u"}, 9999, {"_pq_.x": "y"}),
            b"\0\0\0\x19\0\3\x27\x0fuser\0u\0_pq_.x\0y\0\0",
        ),
    ],
)
def test_encoding_and_decoding(packet: StartupPacket, data: bytes) -> None:
    assert packet.encode() == data
    assert decode_startup_packet(data[4:]) == packet


@pytest.mark.parametrize(
    "payload",
    [
        b"\0\3\0",  # incomplete code
        b"\0\3\0\0",  # no terminator
        b"\0\3\0\0user\0u\0",
        b"\0\3\0\0user\0u\0\0\0",  # extra bytes
        b"\0\3\0\0user\0\xff\0\0",  # not UTF-8
        b"\x04\xd2\x16\x2f\0",  # an SSLRequest with a payload
        b"\x04\xd2\x16\x2e\0\0",  # a CancelRequest without a process
    ],
)
def test_a_malformed_packet_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="invalid startup message"):
        decode_startup_packet(payload)


def test_another_major_version_is_refused_by_name() -> None:
    with pytest.raises(ConnectionRefused, match=r"protocol 2\.0: server supports 3\.0") as caught:
        decode_startup_packet(struct.pack(">I", 2 << 16))
    assert caught.value.sqlstate == "0A000"


@pytest.mark.parametrize("answer", b"EGHRsn\0")
def test_only_s_and_n_answer_an_ssl_request(answer: int) -> None:
    with pytest.raises(ProtocolError, match="expected S or N"):
        decode_encryption_answer(answer)


@pytest.mark.parametrize(
    ("minor", "negotiated", "answer"),
    [
        (0, {}, None),
        (1, {}, None),
        (2, {}, None),
        (3, {}, NegotiateProtocolVersion(2, ())),
        (0, {"_pq_.a": "1"}, NegotiateProtocolVersion(0, ("_pq_.a",))),
        (2, {"_pq_.a": "1"}, NegotiateProtocolVersion(2, ("_pq_.a",))),
        (9999, {"_pq_.b": "", "_pq_.a": "1"}, NegotiateProtocolVersion(2, ("_pq_.b", "_pq_.a"))),
    ],
)
def test_a_newer_client_gets_the_supported_version(
    minor: int, negotiated: dict[str, str], answer: NegotiateProtocolVersion | None
) -> None:
    assert negotiation(StartupMessage({"user": "u"}, minor, negotiated)) == answer


def test_keys_are_longer_since_protocol_3_2() -> None:
    """As in Postgres 18, for all versions that it negotiates."""
    assert [cancel_key_bytes(minor) for minor in (0, 1, 2)] == [4, 4, 32]
    request = CancelRequest(7, bytes(range(32)))
    assert decode_startup_packet(request.encode()[4:]) == request


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", {}),
        ("  \t\n", {}),
        ("-c a=b", {"a": "b"}),
        ("-ca=b", {"a": "b"}),
        ("-cdatestyle=iso", {"datestyle": "iso"}),  # barman
        ("--a=b", {"a": "b"}),
        ("-c DateStyle=iso -c datestyle=German", {"datestyle": "German"}),
        ("--work-mem=1MB -c a-b=c-d", {"work_mem": "1MB", "a_b": "c-d"}),
        ("  -c  a=b\t--c=d ", {"a": "b", "c": "d"}),
        (r"-c a=b\ c", {"a": "b c"}),
        (r"-c a=\\b\-\c", {"a": r"\b-c"}),
        ("-c a=b\\", {"a": "b"}),  # a backslash before nothing
        ("-c a=", {"a": ""}),
        ("-c a=b=c", {"a": "b=c"}),
        ("-c a=1 -c a=2", {"a": "2"}),
        (r"\-c a=b", {"a": "b"}),
    ],
)
def test_options(text: str, options: dict[str, str]) -> None:
    assert parse_options(text) == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a=b", "invalid command-line argument for server process: a=b"),
        ("-x", "invalid command-line argument for server process: -x"),
        ("--", "invalid command-line argument for server process: --"),
        ("-c", 'invalid option "" in startup packet: expected name=value'),
        ("-c a", 'invalid option "a" in startup packet: expected name=value'),
        ("-c =b", 'invalid option "=b" in startup packet: expected name=value'),
        ("--a", 'invalid option "a" in startup packet: expected name=value'),
    ],
)
def test_invalid_options(text: str, message: str) -> None:
    with pytest.raises(ConnectionRefused) as caught:
        parse_options(text)
    assert (str(caught.value), caught.value.sqlstate) == (message, "42601")


@given(st.dictionaries(st.from_regex("[a-z_][a-z0-9_.]*", fullmatch=True), NO_ZERO_BYTES))
def test_formatted_options_are_parsed_back(options: dict[str, str]) -> None:
    assert parse_options(format_options(options)) == options


@given(NO_ZERO_BYTES)
def test_any_options_are_parsed_or_refused(text: str) -> None:
    try:
        parse_options(text)
    except ConnectionRefused:
        pass  # the only exception that is allowed
