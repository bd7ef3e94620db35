"""The messages inside CopyData while WAL is streamed.

    XLogData            server  'w' | start lsn u64 | server's end lsn u64 | time i64 | WAL bytes
    Keepalive           server  'k' | server's end lsn u64 | time i64 | reply requested u8
    StandbyStatus       client  'r' | write u64 | flush u64 | apply u64 | time i64 | reply req. u8
    HotStandbyFeedback  client  'h' | time i64 | xmin u32 | epoch u32 | catalog xmin u32 | epoch u32

Numbers are big-endian, positions are plain ints, times are microseconds since 2000-01-01 UTC.
Parsing raises only ProtocolError. Sources: Postgres `walsender.c`, `walreceiver.c`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from quorum_wal.pgwire.errors import ProtocolError

POSTGRES_EPOCH_UNIX_S = 946_684_800
XLOG_DATA_HEADER_BYTES = 25

_XLOG_DATA = struct.Struct(">cQQq")
_KEEPALIVE = struct.Struct(">cQq?")
_STANDBY_STATUS = struct.Struct(">cQQQq?")
_HOT_STANDBY_FEEDBACK = struct.Struct(">cqIIII")


def postgres_time_us(unix_ns: int) -> int:
    """Converts `time.time_ns()` to the wire's time."""
    return unix_ns // 1000 - POSTGRES_EPOCH_UNIX_S * 1_000_000


def pack_xlog_data_header(start_lsn: int, end_lsn: int, time_us: int) -> bytes:
    """The header before the WAL bytes, which are then sent without a copy.

    `end_lsn` is the position up to which the server may send, not the end of these bytes: clients
    report it as flushed.
    """
    return _XLOG_DATA.pack(b"w", start_lsn, end_lsn, time_us)


class XLogData(Struct, frozen=True, gc=False):
    """WAL from `start_lsn` on. `data` may be a view into the parsed payload."""

    start_lsn: int
    end_lsn: int
    time_us: int
    data: bytes | memoryview

    def encode(self) -> bytes:
        return pack_xlog_data_header(self.start_lsn, self.end_lsn, self.time_us) + self.data


class Keepalive(Struct, frozen=True, gc=False):
    """The server is alive, has sent everything below `end_lsn`, and may request a reply."""

    end_lsn: int
    time_us: int
    reply_requested: bool

    def encode(self) -> bytes:
        return _KEEPALIVE.pack(b"k", self.end_lsn, self.time_us, self.reply_requested)


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """Ends of the WAL that the client has written, flushed and applied. 0: not reported."""

    write_lsn: int
    flush_lsn: int
    apply_lsn: int
    time_us: int
    reply_requested: bool = False

    def encode(self) -> bytes:
        return _STANDBY_STATUS.pack(
            b"r",
            self.write_lsn,
            self.flush_lsn,
            self.apply_lsn,
            self.time_us,
            self.reply_requested,
        )


@dataclass(frozen=True, slots=True)
class HotStandbyFeedback:
    """The oldest transactions that a standby's queries need. All zeros: none any more."""

    time_us: int
    xmin: int
    xmin_epoch: int
    catalog_xmin: int
    catalog_xmin_epoch: int

    def encode(self) -> bytes:
        return _HOT_STANDBY_FEEDBACK.pack(
            b"h",
            self.time_us,
            self.xmin,
            self.xmin_epoch,
            self.catalog_xmin,
            self.catalog_xmin_epoch,
        )


ServerReplicationMessage: TypeAlias = XLogData | Keepalive
StandbyReplicationMessage: TypeAlias = StandbyStatus | HotStandbyFeedback


def parse_server_message(payload: bytes | memoryview) -> ServerReplicationMessage:
    """Parses one CopyData of a server. The WAL is not copied."""
    kind = bytes(payload[:1])
    try:
        if kind == b"w":
            _, start_lsn, end_lsn, time_us = _XLOG_DATA.unpack_from(payload)
            return XLogData(start_lsn, end_lsn, time_us, payload[XLOG_DATA_HEADER_BYTES:])
        if kind == b"k":
            return Keepalive(*_KEEPALIVE.unpack(payload)[1:])
    except struct.error as error:
        raise _malformed(kind, payload) from error
    raise ProtocolError(f"unexpected replication message type {kind!r}: expected 'w' or 'k'")


def parse_standby_message(payload: bytes | memoryview) -> StandbyReplicationMessage:
    """Parses one CopyData of a client."""
    kind = bytes(payload[:1])
    try:
        if kind == b"r":
            return StandbyStatus(*_STANDBY_STATUS.unpack(payload)[1:])
        if kind == b"h":
            return HotStandbyFeedback(*_HOT_STANDBY_FEEDBACK.unpack(payload)[1:])
    except struct.error as error:
        raise _malformed(kind, payload) from error
    raise ProtocolError(f"unexpected replication message type {kind!r}: expected 'r' or 'h'")


def _malformed(kind: bytes, payload: bytes | memoryview) -> ProtocolError:
    return ProtocolError(f"invalid replication message {kind!r}: it has {len(payload)} bytes")
