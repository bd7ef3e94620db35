"""WAL from a position on, as a server streams it, for those who may block.

The proposer's own streams are on its event loop: `walproposer/stream/copy_connection.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from psycopg import pq

from pgclient.errors import ConnectionLost, Silent
from pgclient.results import (
    arrived_copy_data,
    lost,
    next_result,
    receive_copy_data,
    run_command,
)
from pgwal.lsn import format_lsn
from pgwire.errors import ProtocolError
from pgwire.replication import StandbyStatus, XLogData, parse_server_message


def start_copy(pgconn: pq.abc.PGconn, command: str) -> bool:
    """Whether CopyBoth has begun. It has not where the server answered at once, as it does at the
    end of a timeline that it has left. Raises ServerError, ConnectionLost."""
    return run_command(pgconn, command).status == pq.ExecStatus.COPY_BOTH


class ReplicationStream:
    """Of a connection on which START_REPLICATION has begun a copy at `begin_lsn`.

    Every method raises ServerError and ConnectionLost; those that read raise Silent when no message
    came for `silence_seconds`. A server that has nothing to send says so now and then.
    """

    def __init__(self, pgconn: pq.abc.PGconn, begin_lsn: int, silence_seconds: float) -> None:
        self._pgconn = pgconn
        self._silence_seconds = silence_seconds
        #: Where the next piece begins.
        self.next_lsn = begin_lsn

    def pieces(self) -> Iterator[memoryview]:
        """The WAL as it comes, without a gap, until the server ends the stream in good order; an
        empty piece says that there is nothing new."""
        while (payload := receive_copy_data(self._pgconn, self._silence_seconds)) is not None:
            yield self._piece(payload)
        next_result(self._pgconn)  # the server's error, if that was why

    def batches(self, bytes_max: int) -> Iterator[list[memoryview]]:
        """The same: all that has arrived together, at least one piece, and when there are
        `bytes_max` no more."""
        for piece in self.pieces():
            batch, size = [piece], len(piece)
            while size < bytes_max and (payload := self._arrived()) is not None:
                batch.append(self._piece(payload))
                size += len(batch[-1])
            yield batch

    def _arrived(self) -> memoryview | None:
        """What is there without waiting; None: nothing, or the end, which pieces() tells of."""
        try:
            return arrived_copy_data(self._pgconn)
        except Silent:
            return None

    def _piece(self, payload: memoryview) -> memoryview:
        try:
            message = parse_server_message(payload)
        except ProtocolError as error:
            raise ConnectionLost(str(error)) from error
        if not isinstance(message, XLogData):
            return memoryview(b"")
        if message.start_lsn != self.next_lsn:
            raise ConnectionLost(
                f"WAL at {format_lsn(message.start_lsn)} came, expected {format_lsn(self.next_lsn)}"
            )
        self.next_lsn += len(message.data)
        return memoryview(message.data)

    def read(self, end_lsn: int) -> bytes:
        """All up to there."""
        size, wal, pieces = end_lsn - self.next_lsn, bytearray(), self.pieces()
        while len(wal) < size:
            piece = next(pieces, None)
            if piece is None:
                raise ConnectionLost("the server ended the stream")
            wal += piece
        return bytes(wal[:size])

    def send_status(self, status: StandbyStatus) -> None:
        try:
            self._pgconn.put_copy_data(status.encode())
            self._pgconn.flush()
        except psycopg.Error as error:
            raise lost(error) from error

    def end(self) -> None:
        """In good order: when this returns, the server has heard all that was sent."""
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        except psycopg.Error as error:
            raise lost(error) from error
        while receive_copy_data(self._pgconn, self._silence_seconds) is not None:
            continue
        while next_result(self._pgconn) is not None:
            continue
