"""The fields that messages and control files share, and a reader of such fields.

    node_id       term u64 | uuid 16
    term_history  count u32 | (node_id | start_lsn u64) ...
    tli_history   tli u32 | length u32 | the text of its .history file, UTF-8


All integers are big-endian. For any input, reading raises only MessageError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

from quorum_wal.consensus.errors import ConsensusError, MessageError
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.term_history import TermHistory, TermStart
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory

T = TypeVar("T")

# A term history grows by one entry an election; 100 000 elections are 3.2 MB. A greater count is
# damage or an attack, and is refused before memory is allocated.
HISTORY_ENTRIES_MAX = 100_000

_NODE_ID = struct.Struct("!Q16s")
_TERM_START = struct.Struct("!Q16sQ")
_TLI_HISTORY = struct.Struct("!II")
_U8 = struct.Struct("!B")
_U32 = struct.Struct("!I")
_U64 = struct.Struct("!Q")


def encode_node_id(node_id: NodeId) -> bytes:
    return _NODE_ID.pack(node_id.term, node_id.proposer_uuid)


def encode_term_history(history: TermHistory) -> bytes:
    return _U32.pack(len(history.entries)) + b"".join(
        _TERM_START.pack(e.node_id.term, e.node_id.proposer_uuid, e.start_lsn)
        for e in history.entries
    )


def encode_tli_history(history: TimelineHistory) -> bytes:
    text = history.format().encode()
    return _TLI_HISTORY.pack(history.tli, len(text)) + text


class Reader:
    """Reads the fields of a message in order; also used for the control file.

    Every method raises MessageError if the bytes end early or violate a law of the value.
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

    def take(self, length: int) -> bytes:
        """The next bytes, unchanged."""
        return bytes(self.unpack(struct.Struct(f"{length}s"))[0])

    def term_history(self) -> TermHistory:
        starts = (self.unpack(_TERM_START) for _ in range(self._history_count()))
        entries = tuple(TermStart(NodeId(term, uuid), lsn) for term, uuid, lsn in starts)
        return lawful(TermHistory, entries)

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
        """Checks that the message ends here."""
        if self._position != len(self._view):
            extra = len(self._view) - self._position
            raise MessageError(f"message has {extra} bytes after its last field")


def lawful(make: Callable[..., T], *fields: object) -> T:
    """Builds a value whose constructor checks its laws; a violation is a MessageError."""
    try:
        return make(*fields)
    except ConsensusError as error:
        raise MessageError(str(error)) from error
