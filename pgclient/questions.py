"""Commands on a replication connection, and their parsed answers.

A safekeeper answers like a primary. Its flush position is the position up to which it knows the log
to be committed. Sources: Postgres `walsender.c` (IdentifySystem, SendTimeLineHistory).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from psycopg import pq

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgclient.errors import ConnectionLost
from quorum_wal.pgclient.results import run_command
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn

_SIZE = re.compile(r"([0-9]{1,10})(B|kB|MB|GB)")
_UNITS = {"B": 0, "kB": 10, "MB": 20, "GB": 30}


#: Of one value in an answer. The interpreter's lock is held while it is decoded and parsed, and
#: commits may wait for it.
VALUE_BYTES_MAX = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SystemPosition:
    """The system and timeline of a server's WAL, and the position at which that WAL ends."""

    system_id: int
    tli: int
    flush_lsn: int


def ask(pgconn: pq.abc.PGconn, command: str, timeout: float | None = None) -> list[dict[str, str]]:
    """The rows of a command, by column name; a null is an empty string.

    Raises ServerError, ConnectionLost; Silent if the answer was not complete within `timeout`
    seconds.
    """
    result = run_command(pgconn, command, timeout)
    if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        status = pq.ExecStatus(result.status).name
        raise ConnectionLost(f"unexpected answer to {_name(command)}: {status}")
    with _answer_of(command):
        names = [(result.fname(column) or b"").decode() for column in range(result.nfields)]
        return [
            {name: _value(result, row, column).decode() for column, name in enumerate(names)}
            for row in range(result.ntuples)
        ]


def _value(result: pq.abc.PGresult, row: int, column: int) -> bytes:
    """Raises ValueError."""
    value = result.get_value(row, column) or b""
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"expected a value of at most {VALUE_BYTES_MAX} bytes, got {len(value)}")
    return value


def identify_system(pgconn: pq.abc.PGconn) -> SystemPosition:
    """Raises ServerError, ConnectionLost."""
    command = "IDENTIFY_SYSTEM"
    with _answer_of(command):
        (row,) = ask(pgconn, command)
        return SystemPosition(
            int(row["systemid"]), int(row["timeline"]), int(Lsn.parse(row["xlogpos"]))
        )


def read_timeline_history(pgconn: pq.abc.PGconn, tli: int) -> TimelineHistory:
    """Timeline 1 has no history, so the server is not asked for it. Raises ServerError,
    ConnectionLost."""
    command = f"TIMELINE_HISTORY {tli}"
    with _answer_of(command):
        if tli <= 1:
            return TimelineHistory(tli)
        (row,) = ask(pgconn, command)
        return TimelineHistory.parse(tli, row["content"])


def show(pgconn: pq.abc.PGconn, setting: str) -> str:
    """Raises ServerError, ConnectionLost."""
    command = f"SHOW {setting}"
    with _answer_of(command):
        ((value,),) = (row.values() for row in ask(pgconn, command))
        return value


def read_server_facts(pgconn: pq.abc.PGconn, system_id: int) -> ServerFacts:
    """The facts of the server whose system id IDENTIFY_SYSTEM returned. Raises ServerError,
    ConnectionLost."""
    text = show(pgconn, "wal_segment_size")
    size = _SIZE.fullmatch(text)
    if size is None:
        raise ConnectionLost(f"invalid wal_segment_size {text!r}")
    return ServerFacts(system_id, pgconn.server_version, int(size[1]) << _UNITS[size[2]])


def _name(command: str) -> str:
    return command.partition(" ")[0]


@contextmanager
def _answer_of(command: str) -> Iterator[None]:
    """Convert an error in parsing an answer to ConnectionLost."""
    try:
        yield
    except (WalError, ValueError, KeyError) as error:
        raise ConnectionLost(f"invalid answer to {_name(command)}: {error}") from error
