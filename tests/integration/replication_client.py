"""A replication client on libpq: any command, any answer, message by message."""

from __future__ import annotations

import select
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from psycopg import pq
from psycopg.conninfo import make_conninfo

from quorum_wal.pgwire.replication import (
    HotStandbyFeedback,
    Keepalive,
    StandbyStatus,
    XLogData,
    parse_server_message,
)

ANSWER_TIMEOUT = 30.0  # seconds


class ServerError(Exception):
    """The error of the server."""

    def __init__(self, result: pq.abc.PGresult) -> None:
        fields = pq.DiagnosticField
        self.sqlstate, self.message, self.hint = (
            (result.error_field(code) or b"").decode()
            for code in (fields.SQLSTATE, fields.MESSAGE_PRIMARY, fields.MESSAGE_HINT)
        )
        super().__init__(f"{self.sqlstate}: {self.message}")


@dataclass(frozen=True, slots=True)
class Answer:
    """One result: the columns' names and types, and the rows; or only the tag."""

    columns: tuple[tuple[str, int], ...]
    rows: tuple[tuple[bytes | None, ...], ...]
    tag: str

    @classmethod
    def of(cls, result: pq.abc.PGresult) -> Answer:
        columns = tuple(
            ((result.fname(i) or b"").decode(), result.ftype(i)) for i in range(result.nfields)
        )
        rows = tuple(
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        )
        return cls(columns, rows, (result.command_status or b"").decode())


class ReplicationClient:
    """A context manager: a physical replication connection."""

    def __init__(self, conninfo: str, **keywords: Any) -> None:
        text = make_conninfo(conninfo, replication="true", dbname="replication", **keywords)
        self.pgconn = pq.PGconn.connect(text.encode())
        self.end_lsn_max = 0
        assert self.pgconn.status == pq.ConnStatus.OK, self.pgconn.get_error_message()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.pgconn.finish()

    def command(self, text: str) -> list[Answer]:
        """All results of a command. Raises ServerError."""
        self.pgconn.send_query(text.encode())
        return self.results()

    def results(self) -> list[Answer]:
        answers = []
        error: ServerError | None = None
        while (result := self.pgconn.get_result()) is not None:
            if result.status == pq.ExecStatus.FATAL_ERROR:
                error = ServerError(result)
            elif result.status == pq.ExecStatus.COPY_BOTH:
                raise AssertionError("a copy has begun")
            else:
                answers.append(Answer.of(result))
        if error is not None:
            raise error
        return answers

    def row(self, text: str) -> tuple[bytes | None, ...]:
        """The only row of the only result."""
        (answer,) = self.command(text)
        (row,) = answer.rows
        return row

    def start(self, text: str) -> None:
        """Run a command that starts a stream."""
        self.pgconn.send_query(text.encode())
        result = self.pgconn.get_result()
        assert result is not None
        if result.status == pq.ExecStatus.FATAL_ERROR:
            raise ServerError(result)
        assert result.status == pq.ExecStatus.COPY_BOTH, pq.ExecStatus(result.status)

    def receive(self, timeout: float = ANSWER_TIMEOUT) -> XLogData | Keepalive | None:
        """The next message; None at the end of the copy, and results() has the rest."""
        deadline = time.monotonic() + timeout
        while True:
            size, data = self.pgconn.get_copy_data(1)
            if size > 0:
                return parse_server_message(bytes(data))
            if size < 0:
                return None
            assert time.monotonic() < deadline, "nothing came"
            select.select([self.pgconn.socket], [], [], max(0, deadline - time.monotonic()))
            self.pgconn.consume_input()

    def receive_wal(self, begin_lsn: int, end_lsn: int) -> bytes:
        """[begin_lsn, end_lsn), without a gap; `end_lsn_max` is the greatest end that the server
        reported."""
        wal = bytearray()
        while begin_lsn + len(wal) < end_lsn:
            message = self.receive()
            assert message is not None
            self.end_lsn_max = max(self.end_lsn_max, message.end_lsn)
            if isinstance(message, XLogData):
                assert message.start_lsn == begin_lsn + len(wal)
                wal += message.data
        return bytes(wal[: end_lsn - begin_lsn])

    def send(self, message: StandbyStatus | HotStandbyFeedback) -> None:
        self.pgconn.put_copy_data(message.encode())
        self.pgconn.flush()

    def status(self, lsn: int, *, reply_requested: bool = False) -> None:
        """Report that all WAL below `lsn` is flushed."""
        self.send(StandbyStatus(lsn, lsn, lsn, 0, reply_requested))

    def end(self) -> list[Answer]:
        """End the copy in order; returns the results of the server."""
        self.pgconn.put_copy_end()
        while self.receive() is not None:
            continue
        return self.results()
