"""The messages of a logical stream about prepared transactions (pgoutput, protocol 3).

    BeginPrepare      'b' | prepare lsn u64 | end lsn u64 | time i64 | xid u32 | gid
    Prepare           'P' | flags u8 | prepare lsn u64 | end lsn u64 | time i64 | xid u32 | gid
    StreamPrepare     'p' | as Prepare
    CommitPrepared    'K' | flags u8 | commit lsn u64 | end lsn u64 | time i64 | xid u32 | gid
    RollbackPrepared  'r' | flags u8 | prepare end lsn u64 | rollback end lsn u64
                          | prepare time i64 | rollback time i64 | xid u32 | gid


Each is the payload of one XLogData. Numbers are big-endian, gids end with a zero byte, times are
microseconds since 2000-01-01 UTC. All flags are 0. An end is the position behind the record: the
quorum has a record when commit_lsn >= its end. Parsing raises only ProtocolError. Source: Postgres
`replication/logical/proto.c`. In the other direction, 'r' is a StandbyStatus (`replication.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self, TypeAlias

from quorum_wal.pgwire.errors import ProtocolError

GID_BYTES_MAX = 199  # GIDSIZE of twophase.h, without the zero byte

_BEGIN_PREPARE = struct.Struct(">cQQqI")
_PREPARE = struct.Struct(">cBQQqI")  # also of K
_ROLLBACK_PREPARED = struct.Struct(">cBQQqqI")
# Transactions, rows, relations, messages: with an empty publication only 'O' occurs.
_OTHERS = frozenset(b"BCORYIUDTMSEcA")


@dataclass(frozen=True, slots=True)
class BeginPrepare:
    """The changes of a prepared transaction follow, and Prepare ends them."""

    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str

    def encode(self) -> bytes:
        head = (self.prepare_lsn, self.end_lsn, self.prepare_time_us, self.xid)
        return _BEGIN_PREPARE.pack(b"b", *head) + _encode_gid(self.gid)

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Raises ProtocolError."""
        prepare_lsn, end_lsn, time_us, xid = _unpack(_BEGIN_PREPARE, payload)
        _check_lsns(payload, prepare_lsn, end_lsn)
        return cls(prepare_lsn, end_lsn, time_us, xid, _decode_gid(payload, _BEGIN_PREPARE))


@dataclass(frozen=True, slots=True)
class Prepare:
    """The record of PREPARE TRANSACTION is in [prepare_lsn, end_lsn). It is flushed on the primary;
    the quorum may lack it. `is_streamed`: sent as 'p', behind changes that were sent earlier."""

    prepare_lsn: int
    end_lsn: int
    prepare_time_us: int
    xid: int
    gid: str
    is_streamed: bool = False

    def encode(self) -> bytes:
        head = (0, self.prepare_lsn, self.end_lsn, self.prepare_time_us, self.xid)
        kind = b"p" if self.is_streamed else b"P"
        return _PREPARE.pack(kind, *head) + _encode_gid(self.gid)

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Raises ProtocolError."""
        flags, prepare_lsn, end_lsn, time_us, xid = _unpack(_PREPARE, payload)
        _check_flags(payload, flags)
        _check_lsns(payload, prepare_lsn, end_lsn)
        gid = _decode_gid(payload, _PREPARE)
        return cls(prepare_lsn, end_lsn, time_us, xid, gid, payload[:1] == b"p")


@dataclass(frozen=True, slots=True)
class CommitPrepared:
    """The record of COMMIT PREPARED is in [commit_lsn, end_lsn)."""

    commit_lsn: int
    end_lsn: int
    commit_time_us: int
    xid: int
    gid: str

    def encode(self) -> bytes:
        head = (0, self.commit_lsn, self.end_lsn, self.commit_time_us, self.xid)
        return _PREPARE.pack(b"K", *head) + _encode_gid(self.gid)

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Raises ProtocolError."""
        flags, commit_lsn, end_lsn, time_us, xid = _unpack(_PREPARE, payload)
        _check_flags(payload, flags)
        _check_lsns(payload, commit_lsn, end_lsn)
        return cls(commit_lsn, end_lsn, time_us, xid, _decode_gid(payload, _PREPARE))


@dataclass(frozen=True, slots=True)
class RollbackPrepared:
    """The record of ROLLBACK PREPARED ends at `rollback_end_lsn`. Its PREPARE, which may never have
    been sent, has this `prepare_end_lsn` and this time."""

    prepare_end_lsn: int
    rollback_end_lsn: int
    prepare_time_us: int
    rollback_time_us: int
    xid: int
    gid: str

    def encode(self) -> bytes:
        ends = (self.prepare_end_lsn, self.rollback_end_lsn)
        times = (self.prepare_time_us, self.rollback_time_us)
        return _ROLLBACK_PREPARED.pack(b"r", 0, *ends, *times, self.xid) + _encode_gid(self.gid)

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Raises ProtocolError."""
        flags, prepare_end_lsn, end_lsn, prepare_us, rollback_us, xid = _unpack(
            _ROLLBACK_PREPARED, payload
        )
        _check_flags(payload, flags)
        _check_lsns(payload, prepare_end_lsn, end_lsn)
        gid = _decode_gid(payload, _ROLLBACK_PREPARED)
        return cls(prepare_end_lsn, end_lsn, prepare_us, rollback_us, xid, gid)


LogicalMessage: TypeAlias = BeginPrepare | Prepare | CommitPrepared | RollbackPrepared

_KINDS: dict[bytes, Callable[[bytes], LogicalMessage]] = {
    b"b": BeginPrepare.parse,
    b"P": Prepare.parse,
    b"p": Prepare.parse,
    b"K": CommitPrepared.parse,
    b"r": RollbackPrepared.parse,
}


def parse_logical_message(payload: bytes) -> LogicalMessage | None:
    """Parses the data of one XLogData; None for other messages. Raises ProtocolError."""
    kind = payload[:1]
    parse = _KINDS.get(kind)
    if parse is not None:
        return parse(payload)
    if kind and kind[0] in _OTHERS:
        return None
    raise ProtocolError(f"unexpected logical message type {kind!r}: expected 'b', 'P', 'K' or 'r'")


def _unpack(head: struct.Struct, payload: bytes) -> tuple[int, ...]:
    """The numbers behind the type byte."""
    if len(payload) <= head.size:
        raise ProtocolError(
            f"invalid logical message {payload[:1]!r}: expected more than {head.size} bytes,"
            f" got {len(payload)}"
        )
    fields: tuple[int, ...] = head.unpack_from(payload)[1:]
    return fields


def _check_flags(payload: bytes, flags: int) -> None:
    if flags:
        raise ProtocolError(
            f"invalid logical message {payload[:1]!r}: expected flags 0, got {flags:#x}"
        )


def _check_lsns(payload: bytes, *lsns: int) -> None:
    if not all(lsns):
        raise ProtocolError(f"invalid logical message {payload[:1]!r}: a position is 0/0")


def _encode_gid(gid: str) -> bytes:
    encoded = gid.encode("utf-8", "surrogateescape")
    assert 0 < len(encoded) <= GID_BYTES_MAX, gid
    assert 0 not in encoded, gid
    return encoded + b"\0"


def _decode_gid(payload: bytes, head: struct.Struct) -> str:
    """Decodes a gid in the server's encoding; one that is not UTF-8 must not raise."""
    encoded = payload[head.size :]
    if encoded.find(0) != len(encoded) - 1 or not 2 <= len(encoded) <= GID_BYTES_MAX + 1:
        raise ProtocolError(
            f"invalid logical message {payload[:1]!r}: expected a gid of 1 to {GID_BYTES_MAX} bytes"
            f" and a zero byte, got {encoded[:250]!r}"
        )
    return encoded[:-1].decode("utf-8", "surrogateescape")
