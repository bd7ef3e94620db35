"""The messages as bytes inside CopyData: one tag byte, then fields; all integers big-endian.

    ProposerGreeting    'g' version u32 | tenant 16 | timeline 16 | system_id u64 | pg_version u32 |
                            wal_seg_size u32 | proposer_uuid 16
    VoteRequest         'v' stamp | node_id
    Elected             'e' node_id | start_streaming_at u64 | timeline_start u64 | membership |
                            term_history | tli_history
    Configure           'c' node_id | membership
    Follow              'f' generation u32 | node_id | port u16 | host text
    Append              'a' generation u32 | node_id | begin u64 | end u64 | record_end u64 |
                            commit u64 | truncate u64 | WAL bytes to the end of the message
    SafekeeperGreeting  'G' safekeeper_id u64 | instance 8 | has_left u8 | node_id | membership
    VoteResponse        'V' granted u8 | node_id | flush u64 | commit u64 | truncate u64 |
                            timeline_start u64 | membership | term_history | tli_history
    AppendResponse      'A' generation u32 | node_id | flush u64 | durable u64 | commit u64 |
                            remote_consistent u64 | sent_at_us i64 | xmin u32 | epoch u32 |
                            catalog_xmin u32 | epoch u32

    stamp         node_id | generation u32
    node_id, histories: `wire.py`; membership, text: `membership_codec.py`


For any input, decoding raises only MessageError; trailing bytes are an error.
"""

from __future__ import annotations

import struct

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import NodeId, TimelineId
from quorum_wal.consensus.membership import INSTANCE_BYTES
from quorum_wal.consensus.membership_codec import (
    encode_membership,
    encode_stamp,
    encode_text,
    read_membership,
    read_stamp,
    read_text,
)
from quorum_wal.consensus.messages import (
    NO_FEEDBACK,
    Append,
    AppendResponse,
    Configure,
    Elected,
    Follow,
    HotStandbyFeedback,
    ProposerGreeting,
    ProposerMessage,
    SafekeeperGreeting,
    SafekeeperMessage,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from quorum_wal.consensus.wire import (
    Reader,
    encode_node_id,
    encode_term_history,
    encode_tli_history,
)

APPEND = struct.Struct("!cIQ16sQQQQQ")
#: The two halves of an Append: its sender, and its positions.
APPEND_HEAD = struct.Struct("!cIQ16s")
APPEND_POSITIONS = struct.Struct("!QQQQQ")
APPEND_RESPONSE = struct.Struct("!cIQ16sQQQQqIIII")
#: Flush, durable and commit in it.
RESPONSE_POSITIONS = struct.Struct("!QQQ")
RESPONSE_POSITIONS_AT = APPEND_HEAD.size
_APPEND_TAG, _APPEND_RESPONSE_TAG = b"aA"
_GREETING = struct.Struct("!I16s16sQII16s")
_FOLLOW = struct.Struct("!IQ16sH")
_U8 = struct.Struct("!B")
_U64 = struct.Struct("!Q")
_POSITIONS = struct.Struct("!QQQQ")  # of a vote


def encode_append(message: Append) -> bytes:
    """The header and the WAL in one buffer: the only copy on the sending side."""
    node_id = message.node_id
    header = APPEND.pack(
        b"a", message.generation, node_id.term, node_id.proposer_uuid, message.begin_lsn,
        message.end_lsn, message.record_end_lsn, message.commit_lsn, message.truncate_lsn,
    )  # fmt: skip
    return b"".join((header, message.wal))


def append_head(generation: int, node_id: NodeId) -> bytes:
    """The first bytes of every Append of this proposer."""
    return APPEND_HEAD.pack(b"a", generation, node_id.term, node_id.proposer_uuid)


def encode_append_response(message: AppendResponse) -> bytes:
    node_id, feedback = message.node_id, message.feedback
    return APPEND_RESPONSE.pack(
        b"A", message.generation, node_id.term, node_id.proposer_uuid, message.flush_lsn,
        message.durable_lsn, message.commit_lsn, message.remote_consistent_lsn,
        feedback.sent_at_us, feedback.xmin, feedback.xmin_epoch,
        feedback.catalog_xmin, feedback.catalog_xmin_epoch,
    )  # fmt: skip


def encode(message: ProposerMessage | SafekeeperMessage) -> bytes:
    """Any message as the payload of one CopyData."""
    if type(message) is Append:
        return encode_append(message)
    if type(message) is AppendResponse:
        return encode_append_response(message)
    match message:
        case ProposerGreeting():
            server, timeline = message.server, message.timeline
            body = _GREETING.pack(
                message.protocol_version, timeline.tenant_id, timeline.timeline_id,
                server.system_id, server.pg_version, server.wal_seg_size, message.proposer_uuid,
            )  # fmt: skip
            return b"g" + body
        case VoteRequest():
            return b"v" + encode_stamp(message.stamp) + encode_node_id(message.node_id)
        case Elected():
            return b"".join((
                b"e", encode_node_id(message.node_id),
                _U64.pack(message.start_streaming_at), _U64.pack(message.timeline_start_lsn),
                encode_membership(message.membership),
                encode_term_history(message.term_history), encode_tli_history(message.tli_history),
            ))  # fmt: skip
        case Configure():
            return b"".join((
                b"c", encode_node_id(message.node_id), encode_membership(message.membership)
            ))  # fmt: skip
        case Follow():
            node_id = message.node_id
            return b"".join((
                b"f",
                _FOLLOW.pack(
                    message.generation, node_id.term, node_id.proposer_uuid, message.port
                ),
                encode_text(message.host),
            ))  # fmt: skip
        case SafekeeperGreeting():
            return b"".join((
                b"G", _U64.pack(message.safekeeper_id), message.instance,
                _U8.pack(message.has_left), encode_node_id(message.promised),
                encode_membership(message.membership),
            ))  # fmt: skip
        case VoteResponse():
            return b"".join((
                b"V", _U8.pack(message.granted), encode_node_id(message.promised),
                _POSITIONS.pack(
                    message.flush_lsn, message.commit_lsn, message.truncate_lsn,
                    message.timeline_start_lsn,
                ),
                encode_membership(message.membership),
                encode_term_history(message.term_history), encode_tli_history(message.tli_history),
            ))  # fmt: skip


def decode_proposer_message(payload: bytes | memoryview) -> ProposerMessage:
    """A message of the proposer; an Append's `wal` is a view of `payload`. Raises MessageError."""
    view = memoryview(payload)
    if payload and payload[0] == _APPEND_TAG:
        return _decode_append(view)
    reader = Reader(view)
    message: ProposerMessage
    match reader.tag():
        case b"g":
            message = _read_proposer_greeting(reader)
        case b"v":
            message = VoteRequest(read_stamp(reader), reader.node_id())
        case b"e":
            message = Elected(
                node_id=reader.node_id(),
                start_streaming_at=reader.u64(),
                timeline_start_lsn=reader.u64(),
                membership=read_membership(reader),
                term_history=reader.term_history(),
                tli_history=reader.tli_history(),
            )
        case b"c":
            message = Configure(reader.node_id(), read_membership(reader))
        case b"f":
            message = _read_follow(reader)
        case tag:
            raise MessageError(f"unknown message {tag!r} of a proposer")
    reader.finish()
    return message


def decode_safekeeper_message(payload: bytes | memoryview) -> SafekeeperMessage:
    """A message of a safekeeper. Raises MessageError."""
    view = memoryview(payload)
    if payload and payload[0] == _APPEND_RESPONSE_TAG:
        return _decode_append_response(view)
    reader = Reader(view)
    message: SafekeeperMessage
    match reader.tag():
        case b"G":
            message = SafekeeperGreeting(
                safekeeper_id=reader.u64(),
                instance=reader.take(INSTANCE_BYTES),
                has_left=reader.flag(),
                promised=reader.node_id(),
                membership=read_membership(reader),
            )
        case b"V":
            message = VoteResponse(
                granted=reader.flag(),
                promised=reader.node_id(),
                flush_lsn=reader.u64(),
                commit_lsn=reader.u64(),
                truncate_lsn=reader.u64(),
                timeline_start_lsn=reader.u64(),
                membership=read_membership(reader),
                term_history=reader.term_history(),
                tli_history=reader.tli_history(),
            )
        case tag:
            raise MessageError(f"unknown message {tag!r} of a safekeeper")
    reader.finish()
    return message


def _decode_append(view: memoryview) -> Append:
    if len(view) < APPEND.size:
        raise MessageError(f"append of {len(view)} bytes, expected at least {APPEND.size}")
    _, generation, term, uuid, begin, end, record_end, commit, truncate = APPEND.unpack_from(view)
    wal = view[APPEND.size :]
    if end - begin != len(wal):
        raise MessageError(f"append of [{begin:X}, {end:X}) carries {len(wal)} bytes")
    return Append(generation, NodeId(term, uuid), begin, end, record_end, commit, truncate, wal)


def _decode_append_response(view: memoryview) -> AppendResponse:
    if len(view) != APPEND_RESPONSE.size:
        raise MessageError(f"append response of {len(view)} bytes, not {APPEND_RESPONSE.size}")
    _, generation, term, uuid, flush, durable, commit, consistent, *feedback = (
        APPEND_RESPONSE.unpack(view)
    )
    return AppendResponse(
        generation, NodeId(term, uuid), flush, durable, commit, consistent,
        HotStandbyFeedback(*feedback) if any(feedback) else NO_FEEDBACK,
    )  # fmt: skip


def _read_follow(reader: Reader) -> Follow:
    generation, term, uuid, port = reader.unpack(_FOLLOW)
    return Follow(generation, NodeId(term, uuid), read_text(reader), port)


def _read_proposer_greeting(reader: Reader) -> ProposerGreeting:
    version, tenant, timeline, system_id, pg_version, seg_size, uuid = reader.unpack(_GREETING)
    return ProposerGreeting(
        protocol_version=version,
        timeline=TimelineId(tenant, timeline),
        server=ServerFacts(system_id, pg_version, seg_size),
        proposer_uuid=uuid,
    )
