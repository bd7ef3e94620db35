"""An unencrypted connection in CopyBoth mode: our own frames on its socket. Never blocks.

    recv -> FrameBuffer -> payloads        the general path, `receive`
                  `---- lend() ----------> `steady_loop.py`, which works in the buffer itself

It does the same as `CopyConnection` does through libpq.
"""

from __future__ import annotations

import os

import psycopg

from quorum_wal.pgclient.plain_copy import CLOSED, error_of_response, start_plain_copy
from quorum_wal.pgclient.stream import start_copy
from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.framing import COPY_DATA, MESSAGE_BYTES_MAX, FrameBuffer, pack_header
from quorum_wal.pgwire.messages import ErrorResponse, NoticeResponse, ParameterStatus
from quorum_wal.walproposer.connection import server_error
from quorum_wal.walproposer.errors import PrimaryLost, Unreachable
from quorum_wal.walproposer.stream.copy_connection import CopyConnection

_ERROR = ErrorResponse.tag[0]
#: Messages that a server may send at any time.
_ASIDES = (NoticeResponse.tag[0], ParameterStatus.tag[0])


class PlainCopy(CopyConnection):
    """A connection that libpq has opened; `frames` has what has arrived."""

    @classmethod
    def begin(cls, connection: psycopg.Connection, command: str) -> PlainCopy | None:
        """Returns None if the server answered the command without a copy. Blocks; raises
        ServerError, ConnectionLost."""
        frames = start_plain_copy(connection.pgconn.socket, command)
        return cls(connection, frames) if frames is not None else None

    def __init__(self, connection: psycopg.Connection, frames: FrameBuffer) -> None:
        super().__init__(connection)
        self.frames = frames
        #: What the socket did not accept.
        self._unsent = bytearray()

    def send(self, payload: bytes) -> None:
        """Send one CopyData, or queue what the socket does not accept."""
        self.send_rest(pack_header(COPY_DATA, len(payload)) + payload)

    def send_rest(self, data: bytes | memoryview) -> None:
        """Send frames, or the rest of a frame whose beginning was sent."""
        self._unsent += data
        self._write()

    def flush(self) -> None:
        """The socket is writable again."""
        self._write()

    def _write(self) -> None:
        try:
            del self._unsent[: os.write(self.fileno(), self._unsent)]
        except BlockingIOError:
            pass  # wants_write reports that it waits
        except OSError as error:
            self.end_with(Unreachable(error.strerror or str(error)))
            return
        if self.wants_write is not bool(self._unsent):
            self.wants_write = bool(self._unsent)
            self._changed()

    def receive(self) -> list[memoryview]:
        """All payloads that have arrived. They are valid until the next call."""
        frames = self.frames
        try:
            count = os.readv(self.fileno(), [frames.room()])
        except BlockingIOError:
            count = -1  # the buffer may have enough
        except OSError as error:
            self.end_with(Unreachable(error.strerror or str(error)))
            return []
        if count > 0:
            frames.filled(count)
        try:
            payloads = frames.take_copy_data(MESSAGE_BYTES_MAX)
            while self._take_other():
                payloads += frames.take_copy_data(MESSAGE_BYTES_MAX)
        except ProtocolError as error:
            self.end_with(Unreachable(str(error)))
            return []
        if count == 0 and not payloads:
            self.end_with(Unreachable(CLOSED))
        return payloads

    def _take_other(self) -> bool:
        """Take the next frame, which is not CopyData. Returns True for a message after which the
        copy continues. Raises ProtocolError."""
        if self.end is not None or self.frames.peek_type() in (None, COPY_DATA):
            return False
        frame = self.frames.take_frame(MESSAGE_BYTES_MAX)
        if frame is None:
            return False
        kind, payload = frame
        if kind == _ERROR:
            self.end_with(server_error(error_of_response(bytes(payload))))
        elif kind not in _ASIDES:
            self.end_with(PrimaryLost("the server ended the stream", orderly=True))
        return kind in _ASIDES


def begin_copy(
    connection: psycopg.Connection, command: str, *, is_encrypted: bool
) -> CopyConnection | None:
    """Start a copy with this command, through libpq if the connection is encrypted. Returns None if
    the server answered without a copy. Blocks; raises ServerError, ConnectionLost."""
    if not is_encrypted:
        return PlainCopy.begin(connection, command)
    return CopyConnection(connection) if start_copy(connection.pgconn, command) else None
