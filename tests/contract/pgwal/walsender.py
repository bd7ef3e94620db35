"""WAL as a walsender sends it: its messages with their boundaries."""

from __future__ import annotations

import select
import struct
from collections.abc import Callable

from psycopg import pq

from quorum_wal.pg_fixtures.postgres import Postgres

#: (begin_lsn, bytes) of each XLogData message
Message = tuple[int, bytes]

#: 'w', start, end of WAL, time
_XLOG_DATA = struct.Struct("!cQQQ")
_POLL_SECONDS = 0.01


def receive_messages(
    postgres: Postgres, start_lsn: int, is_done: Callable[[int], bool]
) -> list[Message]:
    """Streams from `start_lsn` until `is_done(end of the received WAL)`, called whenever nothing
    arrives."""
    connection = pq.PGconn.connect(f"{postgres.dsn()} replication=true".encode())
    command = f"START_REPLICATION PHYSICAL {start_lsn >> 32:X}/{start_lsn & 0xFFFFFFFF:X}"
    result = connection.exec_(command.encode())
    assert result.status == pq.ExecStatus.COPY_BOTH, result.error_message
    messages: list[Message] = []
    end_lsn = start_lsn
    while True:
        size, data = connection.get_copy_data(1)
        if size > 0:
            if bytes(data[:1]) == b"w":
                _, begin_lsn, _, _ = _XLOG_DATA.unpack_from(data)
                messages.append((begin_lsn, bytes(data[_XLOG_DATA.size :])))
                end_lsn = begin_lsn + len(messages[-1][1])
            continue
        assert size == 0, "the walsender ended the stream"
        if is_done(end_lsn):
            break
        select.select([connection.socket], [], [], _POLL_SECONDS)
        connection.consume_input()
    connection.finish()
    return messages
