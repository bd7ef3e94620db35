"""A membership as bytes in messages and in the control file; all integers big-endian.

membership    author node_id | generation u32 | ids | ids | roster
ids           count u8 | id u64 ...
roster        count u8, and 128 more in a membership that was forced | member ...
member        id u64 | instance 8 | port u16 | text | text: its host, its site
text          length u8 | UTF-8

An older release reads more members there than a roster can have, and refuses the message: so it
cannot drop the mark.

before version 2 of the protocol, and in control files of formats 1 and 2:
membership    generation u32 | ids | ids
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.membership import Member, Membership, Stamp
from quorum_wal.consensus.wire import Reader, encode_node_id, lawful

_U8 = struct.Struct("!B")
_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")
_FORCED = 0x80
_MEMBER = struct.Struct("!Q8sH")


def encode_stamp(stamp: Stamp) -> bytes:
    return encode_node_id(stamp.author) + _U32.pack(stamp.generation)


def encode_membership(membership: Membership) -> bytes:
    parts = [encode_stamp(membership.stamp)]
    parts += [_encode_ids(membership.members), _encode_ids(membership.new_members)]
    parts.append(_U8.pack(len(membership.roster) | _FORCED * membership.is_forced))
    for member in membership.roster:
        parts.append(_MEMBER.pack(member.id, member.instance, member.port))
        parts += [encode_text(member.host), encode_text(member.site)]
    return b"".join(parts)


def read_stamp(reader: Reader) -> Stamp:
    return Stamp(reader.node_id(), reader.u32())


def read_membership(reader: Reader) -> Membership:
    """Raises MessageError."""
    stamp, members, new_members = read_stamp(reader), _read_ids(reader), _read_ids(reader)
    count = reader.u8()
    roster = tuple(_read_member(reader) for _ in range(count & ~_FORCED))
    return lawful(Membership, stamp, members, new_members, roster, bool(count & _FORCED))


def decode_membership(data: bytes | memoryview) -> Membership:
    """Decodes exactly one encoded membership. Raises MessageError."""
    reader = Reader(memoryview(data))
    membership = read_membership(reader)
    reader.finish()
    return membership


def read_membership_v1(reader: Reader) -> Membership:
    """Of a release without stamps: author zero, instances and addresses unknown. Raises
    MessageError."""
    generation, members, new_members = reader.u32(), _read_ids(reader), _read_ids(reader)
    return lawful(Membership, Stamp(NodeId.ZERO, generation), members, new_members)


def _encode_ids(ids: Sequence[int]) -> bytes:
    return _U8.pack(len(ids)) + b"".join(map(_U64.pack, ids))


def _read_ids(reader: Reader) -> tuple[int, ...]:
    return tuple(reader.u64() for _ in range(reader.u8()))


def encode_text(text: str) -> bytes:
    data = text.encode()
    return _U8.pack(len(data)) + data


def read_text(reader: Reader) -> str:
    data = reader.take(reader.u8())
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise MessageError(f"text is not UTF-8: {data[:40]!r}") from error


def _read_member(reader: Reader) -> Member:
    member_id, instance, port = reader.unpack(_MEMBER)
    return lawful(Member, member_id, instance, read_text(reader), port, read_text(reader))
