"""Frames of the protocol: the limits of messages, and the fields in one.

    +------+----------------------+---------------------+
    | type | length (counts self) | payload             |     every message after the startup
    |  u8  |         u32          | length - 4 bytes    |
    +------+----------------------+---------------------+
           | length (counts self) | payload             |     startup packets have no type
           +----------------------+---------------------+


All numbers are big-endian. `FrameBuffer` holds the received bytes and cuts them into frames; it
never reads a payload. `PayloadReader` reads the fields of one. Both raise only ProtocolError.
"""

from __future__ import annotations

import struct

from quorum_wal.pgwire.errors import ProtocolError

# Lengths of payloads, in bytes, without the length word.
STARTUP_PACKET_BYTES_MAX = 10_000  # MAX_STARTUP_PACKET_LENGTH of Postgres
AUTH_MESSAGE_BYTES_MAX = 8 * 1024  # a SCRAM message has a few hundred, an error may be longer
MESSAGE_BYTES_MAX = 1024 * 1024 + 64 * 1024  # an Append of 1 MiB of WAL and its header

COPY_BUFFER_BYTES = 1024 * 1024 + MESSAGE_BYTES_MAX  # one message at its largest, 1 MiB beside it
FRAME_BUFFER_BYTES = 16 * 1024  # initially: enough for every startup packet

COPY_DATA = ord("d")
_HEADER = struct.Struct(">BI")
_LENGTH = struct.Struct(">I")


class FrameBuffer:
    """The bytes that were received and not taken yet: `memory[begin:end]`.

    Bytes are added by feed(), or without a copy by room() and filled(). Frames are returned as
    memoryviews of the buffer: they are valid until the next feed() or room().

    Invariant: 0 <= begin <= end <= len(memory). A caller that takes all frames before every room()
    holds at most one incomplete frame, so the memory stays below twice the largest frame allowed.
    """

    __slots__ = ("_begin", "_end", "_memory")

    def __init__(self, capacity: int = FRAME_BUFFER_BYTES) -> None:
        self._memory = memoryview(bytearray(capacity))
        self._begin = 0
        self._end = 0

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def capacity(self) -> int:
        """Bytes of memory held."""
        return len(self._memory)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append a copy of `data`."""
        self.reserve(len(self) + len(data))
        self.room()[: len(data)] = data
        self.filled(len(data))

    def room(self) -> memoryview:
        """Free memory to receive into, at least one byte; call filled() with the count received."""
        if self._begin == self._end:
            self._begin = self._end = 0
            return self._memory
        if self._begin:
            # The start of an incomplete frame moves to the front, once: afterwards begin is 0.
            rest = len(self)
            self._memory[:rest] = self._memory[self._begin : self._end]
            self._begin, self._end = 0, rest
        if self._end == len(self._memory):
            self.reserve(2 * len(self._memory))
        return self._memory[self._end :]

    def filled(self, count: int) -> None:
        """`count` bytes of the last room() now hold data."""
        self._end += count
        assert self._end <= len(self._memory)

    def lend(self) -> tuple[memoryview, int, int]:
        """The memory and the range of the bytes in it that were not taken yet. The caller receives
        and takes frames itself until give_back()."""
        return self._memory, self._begin, self._end

    def give_back(self, begin: int, end: int) -> None:
        """The bytes received and not taken are now memory[begin:end]."""
        assert 0 <= begin <= end <= len(self._memory)
        self._begin, self._end = begin, end

    def reserve(self, capacity: int) -> None:
        """Make the memory at least `capacity` bytes large. Views returned before stay valid."""
        if capacity <= len(self._memory):
            return
        memory = memoryview(bytearray(max(capacity, 2 * len(self._memory))))
        rest = len(self)
        memory[:rest] = self._memory[self._begin : self._end]
        self._memory, self._begin, self._end = memory, 0, rest

    def release(self) -> None:
        """Free the memory: nothing more will come.

        An error that a connection keeps refers to it through its traceback. Until the garbage
        collector breaks such cycles, megabytes of buffers could accumulate.
        """
        self._memory = memoryview(b"")
        self._begin = self._end = 0

    @property
    def has_frame(self) -> bool:
        """Whether there is a whole frame, or the beginning of an invalid one."""
        if len(self) < _HEADER.size:
            return False
        _, length = _HEADER.unpack_from(self._memory, self._begin)
        return 1 + int(length) <= len(self) or length > 4 + MESSAGE_BYTES_MAX

    def peek_type(self) -> int | None:
        """The first byte of the next frame: its type."""
        return self._memory[self._begin] if self else None

    def take_byte(self) -> int | None:
        """One byte outside of all frames: the answer to an SSLRequest."""
        first = self.peek_type()
        if first is not None:
            self._begin += 1
        return first

    def take_startup(self) -> memoryview | None:
        """The payload of a startup packet, or None while it is incomplete."""
        if len(self) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._memory, self._begin)
        if not 8 <= length <= 4 + STARTUP_PACKET_BYTES_MAX:
            raise ProtocolError(
                f"invalid length of startup packet: expected 8 to "
                f"{4 + STARTUP_PACKET_BYTES_MAX}, got {length}"
            )
        return self._cut(_LENGTH.size, length - 4)

    def take_frame(self, bytes_max: int) -> tuple[int, memoryview] | None:
        """The type and the payload of the next frame, or None while it is incomplete."""
        if len(self) < _HEADER.size:
            return None
        kind, length = _HEADER.unpack_from(self._memory, self._begin)
        if not 4 <= length <= 4 + bytes_max:
            raise _invalid_length(kind, length, bytes_max)
        payload = self._cut(_HEADER.size, length - 4)
        return None if payload is None else (kind, payload)

    def take_copy_data(self, bytes_max: int) -> list[memoryview]:
        """The payloads of all complete CopyData frames at the front; stops at any other frame.

        An invalid frame raises only when it is the first, so that the valid ones before it are
        returned in any case.
        """
        memory, at, end = self._memory, self._begin, self._end
        payloads: list[memoryview] = []
        while end - at >= 5:
            kind, length = _HEADER.unpack_from(memory, at)
            if kind != COPY_DATA:
                break
            if not 4 <= length <= 4 + bytes_max:
                if payloads:
                    break
                raise _invalid_length(kind, length, bytes_max)
            next_at = at + 1 + length
            if next_at > end:
                break
            payloads.append(memory[at + 5 : next_at])
            at = next_at
        self._begin = at
        return payloads

    def _cut(self, header_bytes: int, payload_bytes: int) -> memoryview | None:
        begin = self._begin + header_bytes
        end = begin + payload_bytes
        if end > self._end:
            return None
        self._begin = end
        return self._memory[begin:end]


def _invalid_length(kind: int, length: int, bytes_max: int) -> ProtocolError:
    return ProtocolError(
        f"invalid message length: expected 4 to {4 + bytes_max}, got {length}, "
        f"message type 0x{kind:02X}"
    )


class PayloadReader:
    """Reads the fields of one payload in order; `name` is the message, for error texts."""

    __slots__ = ("_at", "_data", "_name")

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._at = 0

    @property
    def left(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self._at

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        if count > self.left:
            raise self.error(f"expected {count} more bytes at offset {self._at}, got {self.left}")
        begin, self._at = self._at, self._at + count
        return self._data[begin : self._at]

    def rest(self) -> bytes:
        """All remaining bytes."""
        return self.take(self.left)

    def uint8(self) -> int:
        return self.take(1)[0]

    def uint16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def uint32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def string(self, *, strict: bool = True) -> str:
        """The text before the next zero byte. Not strict: invalid UTF-8 becomes U+FFFD."""
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.error(f"expected a string at offset {self._at}, got no zero byte")
        raw = self._data[self._at : end]
        self._at = end + 1
        try:
            return raw.decode("utf-8", "strict" if strict else "replace")
        except UnicodeDecodeError as error:
            raise self.error(f"expected UTF-8, got {raw[:32]!r}") from error

    def finish(self) -> None:
        """Checks that no bytes remain."""
        if self.left:
            raise self.error(f"expected its end at offset {self._at}, got {self.left} more bytes")

    def error(self, what: str) -> ProtocolError:
        """A ProtocolError that names the message."""
        return ProtocolError(f"invalid {self._name} message: {what}")


def pack_header(kind: int, payload_bytes: int) -> bytes:
    """The header before the payload of a frame."""
    return _HEADER.pack(kind, 4 + payload_bytes)


def cstring(text: str) -> bytes:
    """A zero-terminated string. Raises ValueError if the text itself has a zero byte."""
    if "\0" in text:
        raise ValueError(f"text with a zero byte cannot be sent: {text!r}")
    return text.encode() + b"\0"
