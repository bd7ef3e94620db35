"""The messages inside CopyData, against bytes written by hand."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.replication import (
    XLOG_DATA_HEADER_BYTES,
    HotStandbyFeedback,
    Keepalive,
    StandbyStatus,
    XLogData,
    pack_xlog_data_header,
    parse_server_message,
    parse_standby_message,
    postgres_time_us,
)

SERVER = [
    (
        XLogData(0x10, 0x20, -1, b"wal"),
        b"w\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x20\xff\xff\xff\xff\xff\xff\xff\xffwal",
    ),
    (XLogData(1, 2, 3, b""), b"w\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3"),
    (Keepalive(2**64 - 1, 3, True), b"k\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\0\3\1"),
]
STANDBY = [
    (
        StandbyStatus(1, 2, 3, 4, True),
        b"r\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0\4\1",
    ),
    (HotStandbyFeedback(1, 2, 3, 4, 5), b"h\0\0\0\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0\4\0\0\0\5"),
]


@pytest.mark.parametrize(("message", "payload"), SERVER)
def test_a_server_s_messages(message: XLogData | Keepalive, payload: bytes) -> None:
    assert message.encode() == payload
    assert parse_server_message(payload) == message
    assert parse_server_message(memoryview(payload)) == message


@pytest.mark.parametrize(("message", "payload"), STANDBY)
def test_a_standby_s_messages(message: StandbyStatus | HotStandbyFeedback, payload: bytes) -> None:
    assert message.encode() == payload
    assert parse_standby_message(payload) == message
    assert parse_standby_message(memoryview(payload)) == message


def test_wal_is_not_copied() -> None:
    payload = memoryview(SERVER[0][1])
    message = parse_server_message(payload)
    assert isinstance(message, XLogData)
    assert isinstance(message.data, memoryview)
    assert message.data.obj is payload.obj
    assert pack_xlog_data_header(0x10, 0x20, -1) == payload[:XLOG_DATA_HEADER_BYTES]


@pytest.mark.parametrize("payload", [p for _, p in STANDBY] + [p[:-4] for _, p in SERVER])
def test_a_client_refuses_what_no_server_sends(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="replication message"):
        parse_server_message(payload)


@pytest.mark.parametrize("payload", [p for _, p in SERVER] + [p + b"\0" for _, p in STANDBY])
def test_a_server_refuses_what_no_standby_sends(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="replication message"):
        parse_standby_message(payload)


@given(st.binary(max_size=60))
def test_any_payload_is_read_or_refused(payload: bytes) -> None:
    for first in (b"", b"w", b"k", b"r", b"h"):
        for parse in (parse_server_message, parse_standby_message):
            try:
                parse(first + payload)
            except ProtocolError:
                pass  # the only exception that is allowed


def test_time_counts_from_2000() -> None:
    moment = datetime(2000, 1, 2, 0, 0, 1, 5, tzinfo=UTC)
    unix_ns = int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1000
    assert postgres_time_us(unix_ns) == 86_401_000_005
