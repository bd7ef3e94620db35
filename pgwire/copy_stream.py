"""CopyData in both directions on a blocking socket: the hot path.

One system call receives everything that has arrived, and one sends. Payloads are views of the
receive buffer, and are sent without a copy. On a plain socket one thread may drain() while another
one sends; only one thread at a time may use a TLS connection.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from quorum_wal.pgwire.channel import Channel, seconds_left
from quorum_wal.pgwire.connection import NEED_DATA, State
from quorum_wal.pgwire.errors import CopyEnd, CopyEnded, ProtocolError
from quorum_wal.pgwire.framing import COPY_BUFFER_BYTES
from quorum_wal.pgwire.interrupt import Interrupt
from quorum_wal.pgwire.messages import (
    Column,
    CommandComplete,
    CopyDone,
    CopyFail,
    DataRow,
    Message,
    ReadyForQuery,
    RowDescription,
    Terminate,
)
from quorum_wal.pgwire.transport import PlainTransport

END_COPY_TIMEOUT_S = 60.0  # wal_receiver_timeout: a live client answers within it

Value: TypeAlias = str | bytes | int | None


class CopyStream:
    """CopyData in both directions, until drain() raises CopyEnded or end_copy() returns."""

    def __init__(self, channel: Channel, interrupt: Interrupt) -> None:
        self._channel = channel
        self._interrupt = interrupt
        self._connection = channel.connection
        self._transport = channel.transport
        self._ended: CopyEnded | None = None
        self._connection.reserve(COPY_BUFFER_BYTES)

    def drain(self, timeout: float | None = None) -> list[memoryview]:
        """The payloads of all CopyData that have arrived, at least one; they may be empty.

        The views are valid until the next drain(): copy them to keep them longer. Returns an empty
        list if nothing has arrived for `timeout` seconds. Raises CopyEnded after it has returned
        all data before the end, and ProtocolError after it has sent the error and closed the
        connection.
        """
        frames = self._connection.frames
        while True:
            if frames and (payloads := self._take()):
                return payloads
            if self._ended is not None:
                raise self._ended
            try:
                count = self._transport.receive_into(frames.room(), timeout)
            except OSError as error:
                raise self._end(CopyEnd.DISCONNECT, str(error)) from error
            if count is None:
                return []
            if count == 0:
                raise self._end(CopyEnd.DISCONNECT, "client closed the connection")
            frames.filled(count)

    def lend(self) -> tuple[memoryview, int, int]:
        """The receive buffer and the range of the bytes in it that drain() has not returned. The
        caller then receives and takes frames itself; call nothing else until give_back()."""
        return self._connection.frames.lend()

    def give_back(self, begin: int, end: int) -> None:
        """drain() must still return [begin, end) of the buffer."""
        self._connection.frames.give_back(begin, end)

    @property
    def plain_fd(self) -> int:
        """The socket, to receive and send frames on; -1 if it is encrypted."""
        transport = self._transport
        return transport.socket.fileno() if isinstance(transport, PlainTransport) else -1

    def receive_into(self, room: memoryview) -> int:
        """Receives what has arrived, at least one byte. Returns 0 if drain() must find the reason
        why nothing comes."""
        try:
            return self._transport.receive_into(room, None) or 0
        except OSError:
            return 0

    def send_framed(self, frame: bytes | bytearray | memoryview) -> bool:
        """Returns False if the connection is closed, which drain() then reports."""
        try:
            self._transport.send((frame,))
        except OSError:
            return False
        return True

    def wait(self, timeout: float, *, for_data: bool = True) -> bool:
        """Waits until there is data for drain(), for wake(), or for `timeout` seconds. Returns
        whether there is data. `for_data=False`: only for a disconnect. For one thread."""
        if for_data and self.has_buffered():
            return True
        poll = select.poll()
        poll.register(self._interrupt, select.POLLIN)
        poll.register(self, select.POLLRDHUP | (select.POLLIN if for_data else 0))
        ready = dict(poll.poll(math.ceil(timeout * 1000)))
        if self._interrupt.fileno() in ready:
            self._interrupt.clear()
        return self.fileno() in ready

    def wake(self) -> None:
        """Makes the present or the next wait() return. Any thread may call it."""
        self._interrupt.wake()

    def check_canceled(self) -> None:
        """Raises CopyEnded if a CancelRequest has come."""
        if self._interrupt.canceled:
            raise self._end(CopyEnd.CANCELED)

    def has_buffered(self) -> bool:
        """Whether drain() would return or raise without waiting; poll() does not show this."""
        return self._connection.has_frame or self._transport.pending() > 0

    def fileno(self) -> int:
        """For a poll() with other files; ask has_buffered() first."""
        return self._transport.socket.fileno()

    def send(self, *parts: bytes | memoryview) -> None:
        """Sends one CopyData; its payload is the concatenation of a few parts of bytes.

        Raises CopyEnded if the connection is closed.
        """
        header = self._connection.copy_data_header(sum(map(len, parts)))
        try:
            self._transport.send((header, *parts))
        except OSError as error:
            raise self._end(CopyEnd.DISCONNECT, str(error)) from error

    def end_copy(
        self,
        *,
        columns: Sequence[Column] = (),
        rows: Iterable[Sequence[Value]] = (),
        tags: Sequence[str] = ("START_STREAMING", "START_REPLICATION"),
        timeout: float = END_COPY_TIMEOUT_S,
    ) -> None:
        """Ends the copy in order, for either side, and is ready for the next command.

        Sends CopyDone and waits for the client's, ignoring other data. Then sends the result, if
        there are columns, and the tags. A walreceiver expects the two default tags, and at the end
        of a timeline a row with the next one and its start. Raises CopyEnded if the client ends in
        another way, or sends nothing for `timeout` seconds.
        """
        result = result_messages(columns, rows) if columns else ()
        try:
            self._channel.send(CopyDone())
            self._await_copy_done(timeout)
            self._channel.send(*result, *map(CommandComplete, tags), ReadyForQuery())
        except OSError as error:
            raise self._end(CopyEnd.DISCONNECT, str(error)) from error

    def stop(self) -> None:
        """The server shuts down: ends the stream in a way that a walreceiver takes as orderly."""
        try:
            self._channel.send(CommandComplete("COPY 0"))
        except OSError:
            pass  # the client has disconnected before
        self._channel.close()

    def _await_copy_done(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while self._connection.state is State.COPY_SERVER_DONE:
            try:
                payloads = self.drain(seconds_left(deadline))
            except CopyEnded as ended:
                if ended.how is not CopyEnd.COPY_DONE:
                    raise
            else:
                if not payloads:
                    raise self._end(CopyEnd.DISCONNECT, f"no CopyDone came within {timeout} s")

    def _take(self) -> list[memoryview]:
        """All whole CopyData; or notes the end, if that comes next."""
        try:
            payloads = self._connection.take_copy_data()
            if not payloads and self._ended is None:
                self._note_end()
        except ProtocolError as error:
            self._channel.hang_up(error)
            raise
        return payloads

    def _note_end(self) -> None:
        match self._connection.next():
            case CopyDone():
                self._end(CopyEnd.COPY_DONE)
            case CopyFail(reason):
                self._end(CopyEnd.COPY_FAIL, reason)
            case Terminate():
                self._end(CopyEnd.TERMINATE)
            case other:
                assert other is NEED_DATA

    def _end(self, how: CopyEnd, message: str = "") -> CopyEnded:
        self._ended = CopyEnded(how, message)
        return self._ended


def result_messages(columns: Sequence[Column], rows: Iterable[Sequence[Value]]) -> list[Message]:
    """A result, up to its CommandComplete."""
    return [
        RowDescription(tuple(columns)),
        *(DataRow(tuple(map(_encode_value, row))) for row in rows),
    ]


def _encode_value(value: Value) -> bytes | None:
    return value if value is None or isinstance(value, bytes) else str(value).encode()
