"""CopyBoth on an unencrypted connection, read and written on the socket, without libpq.

    libpq: connect, authenticate, ask    ours: START_REPLICATION, CopyData both ways

libpq buffers the bytes that it receives. The commit path makes few system calls and needs the bytes
where the kernel put them. Between two commands libpq has no buffered bytes, so we take the socket
over there. After a refusal libpq can use the socket again. Errors are the same as those of
`results.py`.
"""

from __future__ import annotations

import math
import os
import select
import time

from quorum_wal.pgclient.errors import ConnectionLost, PgClientError, ServerError, Silent
from quorum_wal.pgwire.errors import ProtocolError
from quorum_wal.pgwire.framing import COPY_BUFFER_BYTES, MESSAGE_BYTES_MAX, FrameBuffer
from quorum_wal.pgwire.messages import CopyBothResponse, ErrorResponse, Query, ReadyForQuery

# A running server answers a command at once. The limit is that of wal_receiver_timeout.
START_SECONDS_MAX = 60.0
#: The text of libpq.
CLOSED = "server closed the connection unexpectedly"

_COPY_BOTH, _ERROR, _READY = (
    message.tag[0] for message in (CopyBothResponse, ErrorResponse, ReadyForQuery)
)


def start_plain_copy(fd: int, command: str) -> FrameBuffer | None:
    """Start a copy on this socket. Returns the bytes received after CopyBothResponse. Returns None
    if the server answered without a copy, as it does at the end of a timeline that it has left.
    Raises ServerError, after which the next command may be sent, and ConnectionLost."""
    deadline = time.monotonic() + START_SECONDS_MAX
    frames = FrameBuffer(COPY_BUFFER_BYTES)
    error: PgClientError | None = None
    try:
        os.write(fd, Query(command).encode())  # the only bytes in flight: there is room
        while True:
            frame = frames.take_frame(MESSAGE_BYTES_MAX)
            if frame is None:
                if not _receive(fd, frames, deadline):
                    raise error or ConnectionLost(CLOSED)
                continue
            kind, payload = frame
            if kind == _COPY_BOTH:
                return frames
            if kind == _ERROR:
                error = error_of_response(bytes(payload))
            elif kind == _READY and error is not None:
                raise error
            elif kind == _READY:
                return None
    except OSError as os_error:
        raise error or ConnectionLost(os_error.strerror or str(os_error)) from os_error
    except ProtocolError as unreadable:
        raise ConnectionLost(str(unreadable)) from unreadable


def error_of_response(payload: bytes) -> PgClientError:
    """Convert an ErrorResponse to an error."""
    try:
        report = ErrorResponse.decode(payload)
    except ProtocolError as unreadable:
        return ConnectionLost(str(unreadable))
    return ServerError(report.message, sqlstate=report.sqlstate or "XX000", hint=report.hint or "")


def _receive(fd: int, frames: FrameBuffer, deadline: float) -> int:
    """Wait for input. Returns 0 at the end of the stream. Raises OSError, Silent."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    seconds = deadline - time.monotonic()
    if seconds <= 0 or not poll.poll(math.ceil(seconds * 1000)):
        raise Silent(START_SECONDS_MAX)
    count = os.readv(fd, [frames.room()])
    frames.filled(count)
    return count
