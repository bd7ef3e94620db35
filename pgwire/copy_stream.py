"""CopyData in both directions on a blocking socket: the hot path.

One system call receives whatever has arrived, and one sends; payloads are views of the receive
buffer, and no payload is copied to be sent. On a plain socket one thread may drain() while another
one sends; a TLS connection belongs to one thread at a time.
"""

from __future__ import annotations

import math
import select
import time
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from pgwire.channel import Channel, seconds_left
from pgwire.connection import NEED_DATA, State
from pgwire.errors import CopyEnd, CopyEnded, ProtocolError
from pgwire.framing import COPY_BUFFER_BYTES
from pgwire.interrupt import Interrupt
from pgwire.messages import (
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
from pgwire.transport import PlainTransport

END_COPY_TIMEOUT_S = 60.0  # wal_receiver_timeout: a client that lives answers within it

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

        The views are valid until the next drain(): what is kept longer must be copied. An empty
        list: nothing has arrived for `timeout` seconds. Raises CopyEnded, once all data before the
        end were handed out, and ProtocolError after telling the client, and closing.
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
        """The receive buffer and where in it the bytes are that drain() has not handed out, to who
        receives and takes frames himself; nothing else may be called until give_back()."""
        return self._connection.frames.lend()

    def give_back(self, begin: int, end: int) -> None:
        """What drain() has to hand out is at [begin, end) of the buffer."""
        self._connection.frames.give_back(begin, end)

    @property
    def plain_fd(self) -> int:
        """The socket, to receive and send frames on; -1 when it is encrypted."""
        transport = self._transport
        return transport.socket.fileno() if isinstance(transport, PlainTransport) else -1

    def receive_into(self, room: memoryview) -> int:
        """Whatever has arrived, at least one byte; 0 when drain() must tell why nothing comes."""
        try:
            return self._transport.receive_into(room, None) or 0
        except OSError:
            return 0

    def send_framed(self, frame: bytes | bytearray | memoryview) -> bool:
        """False when the connection is gone, which drain() will tell."""
        try:
            self._transport.send((frame,))
        except OSError:
            return False
        return True

    def wait(self, timeout: float, *, hears: bool = True) -> bool:
        """Until there is something to drain(), until wake(), or for `timeout` seconds; whether
        there is something. `hears=False`: only when the client has left. For one thread."""
        if hears and self.has_buffered():
            return True
        poll = select.poll()
        poll.register(self._interrupt, select.POLLIN)
        poll.register(self, select.POLLRDHUP | (select.POLLIN if hears else 0))
        ready = dict(poll.poll(math.ceil(timeout * 1000)))
        if self._interrupt.fileno() in ready:
            self._interrupt.clear()
        return self.fileno() in ready

    def wake(self) -> None:
        """wait() returns, the one that runs or the next one. Any thread may call it."""
        self._interrupt.wake()

    def check_canceled(self) -> None:
        """Raises CopyEnded when a CancelRequest has come."""
        if self._interrupt.canceled:
            raise self._end(CopyEnd.CANCELED)

    def has_buffered(self) -> bool:
        """Whether drain() would return or raise without waiting; a poll() would not tell."""
        return self._connection.has_frame or self._transport.pending() > 0

    def fileno(self) -> int:
        """To wait for with others; ask has_buffered() first."""
        return self._transport.socket.fileno()

    def send(self, *parts: bytes | memoryview) -> None:
        """Send one CopyData whose payload is the parts in a row, of bytes; a few, not hundreds.

        Raises CopyEnded if the connection is gone.
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
        """End the copy in order, whichever side wished it, and be ready for the next command.

        Says CopyDone, waits for the client's (dropping what it still sends), then gives the result,
        if there are columns, and the tags. A walreceiver expects the two that are the default, and
        at the end of a timeline a row with the next one and its start. Raises CopyEnded if the
        client ends in another way, or says nothing for `timeout` seconds.
        """
        result = result_messages(columns, rows) if columns else ()
        try:
            self._channel.send(CopyDone())
            self._await_copy_done(timeout)
            self._channel.send(*result, *map(CommandComplete, tags), ReadyForQuery())
        except OSError as error:
            raise self._end(CopyEnd.DISCONNECT, str(error)) from error

    def stop(self) -> None:
        """The server shuts down: nothing more will come. A walreceiver takes it for a clean end."""
        try:
            self._channel.send(CommandComplete("COPY 0"))
        except OSError:
            pass  # the client has left before
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
        """All whole CopyData, or else the end, if that comes next."""
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
