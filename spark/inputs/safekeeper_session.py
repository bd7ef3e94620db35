"""A connection to one safekeeper with the replication protocol: IDENTIFY_SYSTEM, TIMELINE_HISTORY,
START_REPLICATION, slots.

Laws. Safekeepers send only committed WAL. A connection string is never part of a message, because
it may contain a password, and a typing error may have moved that anywhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.consensus.errors import MessageError
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import MEMBERS_MAX
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgclient.connection import connect_safekeeper
from quorum_wal.pgclient.errors import NotConnected, PgClientError, ServerError
from quorum_wal.pgclient.questions import (
    ask,
    identify_system,
    read_server_facts,
    read_timeline_history,
    show,
)
from quorum_wal.pgclient.stream import ReplicationStream, start_copy
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire.commands import StartReplication, format_start_replication
from quorum_wal.pgwire.replication import StandbyStatus, postgres_time_us
from quorum_wal.pgwire.startup import format_options
from quorum_wal.spark.errors import OptionError, WalInputError

CONNECT_SECONDS = 10
#: a safekeeper without new WAL sends a keepalive every second
SILENCE_SECONDS = 20.0
STATUS_SECONDS = 10.0
DEFAULT_PORT = "5454"
#: the old members and the new ones, while they are changed
SAFEKEEPERS_MAX = 2 * MEMBERS_MAX

_HINT = "sk1:5454,sk2:5454,sk3:5454, or 'host=sk1,sk2,sk3 port=5454 user=... passfile=...'."


class SafekeeperRefused(WalInputError):
    """An error that the safekeeper reported, with its SQLSTATE."""

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


@dataclass(frozen=True, slots=True)
class SafekeeperAddress:
    """`conninfo` is a libpq connection string for this safekeeper; it may contain a password."""

    name: str
    conninfo: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Position:
    """The server and the history of the log, its start, and the safekeeper's commit LSN."""

    server: ServerFacts
    history: TimelineHistory
    commit_lsn: int
    timeline_start_lsn: int


def parse_safekeepers(text: str, timeline: str | None) -> tuple[SafekeeperAddress, ...]:
    """`HOST:PORT,HOST:PORT`, or a libpq connection string or URI with one host or several.

    Raises OptionError, whose message does not contain the text.
    """
    keywords = _keywords(text)
    hosts = keywords.pop("host", "").split(",")
    ports = keywords.pop("port", DEFAULT_PORT).split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if not all(hosts) or len(ports) != len(hosts):
        raise OptionError(
            "option safekeepers must name a host for each safekeeper, and one port or one for each",
            hint=_HINT,
        )
    if len(hosts) > SAFEKEEPERS_MAX:
        raise OptionError(
            f"option safekeepers names {len(hosts)} hosts, expected at most {SAFEKEEPERS_MAX}",
            hint=_HINT,
        )
    keywords = {"connect_timeout": str(CONNECT_SECONDS), **keywords, "replication": "true"}
    if timeline is not None:
        keywords["options"] = f"{keywords.get('options', '')} {_timeline_options(timeline)}".strip()
    return tuple(
        SafekeeperAddress(f"{host}:{port}", make_conninfo("", host=host, port=port, **keywords))
        for host, port in zip(hosts, ports, strict=True)
    )


def _keywords(text: str) -> dict[str, str]:
    try:
        text.encode()
        if "=" in text or "://" in text:
            return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except (psycopg.Error, UnicodeError):
        raise OptionError(
            "option safekeepers is not a libpq connection string",
            hint=_HINT,
        ) from None
    pairs = [part.strip().rpartition(":") for part in text.split(",")]
    hosts = [host.strip("[]") if colon else port for host, colon, port in pairs]
    ports = [port if colon else DEFAULT_PORT for _, colon, port in pairs]
    return {"host": ",".join(hosts), "port": ",".join(ports)}


def _timeline_options(timeline: str) -> str:
    try:
        parsed = TimelineId.parse(timeline)
    except MessageError as error:
        raise OptionError(f"option timeline: {error}") from error
    return format_options(
        {"tenant_id": parsed.tenant_id.hex(), "timeline_id": parsed.timeline_id.hex()}
    )


class SafekeeperSession:
    """Every method raises WalInputError, or SafekeeperRefused with the safekeeper's message."""

    def __init__(self, address: SafekeeperAddress) -> None:
        self.name = address.name
        with self._errors():
            self._connection = connect_safekeeper(address.conninfo)
        self._pgconn = self._connection.pgconn

    def close(self) -> None:
        self._connection.close()

    # ---- questions

    def position(self) -> Position:
        with self._errors():
            system = identify_system(self._pgconn)
            server = read_server_facts(self._pgconn, system.system_id)
            start_lsn = Lsn.parse(show(self._pgconn, "timeline_start_lsn"))
            history = read_timeline_history(self._pgconn, system.tli)
        return Position(server, history, system.flush_lsn, int(start_lsn))

    def commit_lsn(self) -> int:
        with self._errors():
            return identify_system(self._pgconn).flush_lsn

    def execute(self, command: str) -> None:
        with self._errors():
            ask(self._pgconn, command)

    # ---- streams

    def stream(self, lsn: int, tli: int) -> Iterator[bytes]:
        """The log from `lsn` up to the end of its timeline, as it arrives. An empty piece means
        that there is no new WAL."""
        reported_at = time.monotonic()
        with self._errors():
            stream = self._start(StartReplication(Lsn(lsn), timeline=tli))
            if stream is None:
                return
            for piece in stream.pieces():
                if time.monotonic() - reported_at > STATUS_SECONDS:
                    reported_at = time.monotonic()
                    stream.send_status(_status(lsn, flush_lsn=0))
                lsn = stream.next_lsn
                yield bytes(piece)

    def report_flushed(self, slot: str, lsn: int, tli: int) -> None:
        """Starts a stream with this slot, reports all WAL below `lsn` as flushed, and ends it. The
        safekeeper has received the report when this returns."""
        with self._errors():
            stream = self._start(StartReplication(Lsn(lsn), slot=slot, timeline=tli))
            if stream is not None:
                stream.send_status(_status(lsn, flush_lsn=lsn))
                stream.end()

    def _start(self, command: StartReplication) -> ReplicationStream | None:
        """None if the timeline ends exactly there."""
        if not start_copy(self._pgconn, format_start_replication(command)):
            return None
        return ReplicationStream(self._pgconn, command.start_lsn, SILENCE_SECONDS)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Errors of the safekeeper in the block become WalInputErrors."""
        try:
            yield
        except ServerError as error:
            raise SafekeeperRefused(
                self._prefixed(str(error)), hint=error.hint, sqlstate=error.sqlstate
            ) from error
        except NotConnected as error:
            reason = str(error).removeprefix("connection failed: ")
            raise WalInputError(self._prefixed(f"connection failed: {reason}")) from error
        except (PgClientError, WalError) as error:
            raise WalInputError(self._prefixed(str(error))) from error

    def _prefixed(self, words: str) -> str:
        return f"safekeeper {self.name}: {' '.join(words.split())}"


def _status(write_lsn: int, *, flush_lsn: int) -> StandbyStatus:
    """`flush_lsn` 0 reports no flush position, and the slot does not move."""
    return StandbyStatus(write_lsn, flush_lsn, 0, postgres_time_us(time.time_ns()))
