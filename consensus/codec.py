"""How the messages look inside CopyData: one tag byte, then fields, all integers big-endian.

    ProposerGreeting    'g' version u32 | tenant 16 | timeline 16 | system_id u64 | pg_version u32 |
                            wal_seg_size u32 | proposer_uuid 16 | membership
    VoteRequest         'v' generation u32 | node_id
    Elected             'e' generation u32 | node_id | start_streaming_at u64 |
                            timeline_start u64 | term_history | tli_history
    Append              'a' generation u32 | node_id | begin u64 | end u64 | record_end u64 |
                            commit u64 | truncate u64 | WAL bytes to the end of the message
    SafekeeperGreeting  'G' safekeeper_id u64 | node_id | membership
    VoteResponse        'V' generation u32 | granted u8 | node_id | flush u64 | commit u64 |
                            truncate u64 | timeline_start u64 | term_history | tli_history
    AppendResponse      'A' generation u32 | node_id | flush u64 | durable u64 | commit u64 |
                            remote_consistent u64 | sent_at_us i64 | xmin u32 | epoch u32 |
                            catalog_xmin u32 | epoch u32

    node_id       term u64 | uuid 16
    membership    generation u32 | count u8 | id u64 ... | count u8 | id u64 ...
    term_history  count u32 | (node_id | start_lsn u64) ...
    tli_history   tli u32 | length u32 | the text of its .history file, UTF-8

Decoding raises MessageError and nothing else, whatever the bytes; trailing bytes are an error.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from consensus.errors import ConsensusError, MessageError
from consensus.ids import NodeId, TimelineId
from consensus.membership import Membership
from consensus.messages import (
    NO_FEEDBACK,
    Append,
    AppendResponse,
    Elected,
    HotStandbyFeedback,
    ProposerGreeting,
    ProposerMessage,
    SafekeeperGreeting,
    SafekeeperMessage,
    ServerFacts,
    VoteRequest,
    VoteResponse,
)
from consensus.term_history import TermHistory, TermStart
from pgwal.errors import WalError
from pgwal.history import TimelineHistory

T = TypeVar("T")

# A term history grows by one entry an election; 100 000 elections are 3.2 MB. A count beyond that
# is damage or an attack, and is refused before anything is allocated.
HISTORY_ENTRIES_MAX = 100_000

APPEND = struct.Struct("!cIQ16sQQQQQ")
#: Its two halves: whose it is, and what it says.
APPEND_HEAD = struct.Struct("!cIQ16s")
APPEND_POSITIONS = struct.Struct("!QQQQQ")
APPEND_RESPONSE = struct.Struct("!cIQ16sQQQQqIIII")
#: Where its flush, durable and commit are.
RESPONSE_POSITIONS = struct.Struct("!QQQ")
RESPONSE_POSITIONS_AT = APPEND_HEAD.size
_APPEND_TAG, _APPEND_RESPONSE_TAG = b"aA"
_GREETING = struct.Struct("!I16s16sQII16s")
_NODE_ID = struct.Struct("!Q16s")
_TERM_START = struct.Struct("!Q16sQ")
_TLI_HISTORY = struct.Struct("!II")
_U8 = struct.Struct("!B")
_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")


def encode_append(message: Append) -> bytes:
    """The header and the WAL in one buffer: the only copy on the sending side."""
    node_id = message.node_id
    header = APPEND.pack(
        b"a", message.generation, node_id.term, node_id.proposer_uuid, message.begin_lsn,
        message.end_lsn, message.record_end_lsn, message.commit_lsn, message.truncate_lsn,
    )  # fmt: skip
    return b"".join((header, message.wal))


def append_head(generation: int, node_id: NodeId) -> bytes:
    """With which every Append of this proposer begins."""
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
            return b"g" + body + encode_membership(message.membership)
        case VoteRequest():
            return b"v" + _U32.pack(message.generation) + encode_node_id(message.node_id)
        case Elected():
            return b"".join((
                b"e", _U32.pack(message.generation), encode_node_id(message.node_id),
                _U64.pack(message.start_streaming_at), _U64.pack(message.timeline_start_lsn),
                encode_term_history(message.term_history), encode_tli_history(message.tli_history),
            ))  # fmt: skip
        case SafekeeperGreeting():
            promised = encode_node_id(message.promised)
            membership = encode_membership(message.membership)
            return b"G" + _U64.pack(message.safekeeper_id) + promised + membership
        case VoteResponse():
            return b"".join((
                b"V", _U32.pack(message.generation), _U8.pack(message.granted),
                encode_node_id(message.promised), _U64.pack(message.flush_lsn),
                _U64.pack(message.commit_lsn), _U64.pack(message.truncate_lsn),
                _U64.pack(message.timeline_start_lsn),
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
            message = VoteRequest(reader.u32(), reader.node_id())
        case b"e":
            message = Elected(
                generation=reader.u32(),
                node_id=reader.node_id(),
                start_streaming_at=reader.u64(),
                timeline_start_lsn=reader.u64(),
                term_history=reader.term_history(),
                tli_history=reader.tli_history(),
            )
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
            message = SafekeeperGreeting(reader.u64(), reader.node_id(), reader.membership())
        case b"V":
            message = VoteResponse(
                generation=reader.u32(),
                granted=reader.flag(),
                promised=reader.node_id(),
                flush_lsn=reader.u64(),
                commit_lsn=reader.u64(),
                truncate_lsn=reader.u64(),
                timeline_start_lsn=reader.u64(),
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


def _read_proposer_greeting(reader: Reader) -> ProposerGreeting:
    version, tenant, timeline, system_id, pg_version, seg_size, uuid = reader.unpack(_GREETING)
    return ProposerGreeting(
        protocol_version=version,
        timeline=TimelineId(tenant, timeline),
        server=ServerFacts(system_id, pg_version, seg_size),
        proposer_uuid=uuid,
        membership=reader.membership(),
    )


def encode_node_id(node_id: NodeId) -> bytes:
    return _NODE_ID.pack(node_id.term, node_id.proposer_uuid)


def encode_membership(membership: Membership) -> bytes:
    parts = [_U32.pack(membership.generation)]
    for group in (membership.members, membership.new_members):
        parts.append(_U8.pack(len(group)))
        parts.extend(map(_U64.pack, group))
    return b"".join(parts)


def encode_term_history(history: TermHistory) -> bytes:
    return _U32.pack(len(history.entries)) + b"".join(
        _TERM_START.pack(e.node_id.term, e.node_id.proposer_uuid, e.start_lsn)
        for e in history.entries
    )


def encode_tli_history(history: TimelineHistory) -> bytes:
    text = history.format().encode()
    return _TLI_HISTORY.pack(history.tli, len(text)) + text


class Reader:
    """Takes fields off the front of a message; also used for the control file.

    Every method raises MessageError when the bytes end early or contradict a law of the value.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        if self._position + layout.size > len(self._view):
            raise MessageError(
                f"message of {len(self._view)} bytes ends inside a field at {self._position}"
            )
        fields = layout.unpack_from(self._view, self._position)
        self._position += layout.size
        return fields

    def tag(self) -> bytes:
        position = self._position
        self.u8()
        return bytes(self._view[position : position + 1])

    def u8(self) -> int:
        return int(self.unpack(_U8)[0])

    def u32(self) -> int:
        return int(self.unpack(_U32)[0])

    def u64(self) -> int:
        return int(self.unpack(_U64)[0])

    def flag(self) -> bool:
        value = self.u8()
        if value > 1:
            raise MessageError(f"flag is {value}, expected 0 or 1")
        return value == 1

    def node_id(self) -> NodeId:
        return NodeId(*self.unpack(_NODE_ID))

    def membership(self) -> Membership:
        generation = self.u32()
        members = tuple(self.u64() for _ in range(self.u8()))
        new_members = tuple(self.u64() for _ in range(self.u8()))
        return _lawful(Membership, generation, members, new_members)

    def term_history(self) -> TermHistory:
        starts = (self.unpack(_TERM_START) for _ in range(self._history_count()))
        entries = tuple(TermStart(NodeId(term, uuid), lsn) for term, uuid, lsn in starts)
        return _lawful(TermHistory, entries)

    def tli_history(self) -> TimelineHistory:
        tli, length = self.unpack(_TLI_HISTORY)
        if length > len(self._view) - self._position:
            raise MessageError(f"timeline history of {length} bytes ends behind its message")
        text = bytes(self._view[self._position : self._position + length])
        self._position += length
        try:
            return TimelineHistory.parse(tli, text.decode())
        except (WalError, UnicodeDecodeError) as error:
            raise MessageError(f"timeline history of {tli}: {error}") from error

    def _history_count(self) -> int:
        count = self.u32()
        if count > HISTORY_ENTRIES_MAX:
            raise MessageError(f"history of {count} entries, at most {HISTORY_ENTRIES_MAX} allowed")
        return count

    def finish(self) -> None:
        """The message must end here."""
        if self._position != len(self._view):
            extra = len(self._view) - self._position
            raise MessageError(f"message has {extra} bytes after its last field")


def _lawful(make: Callable[..., T], *fields: object) -> T:
    """A value whose constructor checks its laws; a broken law is a broken message."""
    try:
        return make(*fields)
    except ConsensusError as error:
        raise MessageError(str(error)) from error
