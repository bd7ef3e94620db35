"""One connection to one safekeeper, as any replica has it: IDENTIFY_SYSTEM, TIMELINE_HISTORY,
START_REPLICATION, slots.

Laws. Only committed WAL comes, since safekeepers send nothing else. A connection string never
becomes part of a message: it may hold a password, and a mistake may have put it anywhere.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from consensus.errors import MessageError
from consensus.ids import TimelineId
from consensus.messages import ServerFacts
from pgwal.errors import WalError
from pgwal.history import TimelineHistory
from pgwal.lsn import Lsn, format_lsn
from pgwire.errors import ProtocolError
from pgwire.replication import (
    ServerReplicationMessage,
    StandbyStatus,
    XLogData,
    parse_server_message,
    postgres_time_us,
)
from pgwire.required_auth import required_auth
from spark.errors import OptionError, WalInputError

CONNECT_SECONDS = 10
#: a safekeeper that has nothing to send says so every second
SILENCE_SECONDS = 20.0
STATUS_SECONDS = 10.0
DEFAULT_PORT = "5454"

UNDEFINED_FILE = "58P01"
_HINT = "sk1:5454,sk2:5454,sk3:5454, or 'host=sk1,sk2,sk3 port=5454 user=... passfile=...'."
_UNITS = {"kB": 10, "MB": 20, "GB": 30}


class SafekeeperRefused(WalInputError):
    """A safekeeper's own words, with its SQLSTATE."""

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message, hint=hint)
        self.sqlstate = sqlstate


@dataclass(frozen=True, slots=True)
class SafekeeperAddress:
    """`conninfo` is of libpq, for this one alone; it may hold a password."""

    name: str
    conninfo: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Position:
    """Whose log it is, where it begins, and how far it is committed, as one safekeeper knows."""

    server: ServerFacts
    history: TimelineHistory
    commit_lsn: int
    timeline_start_lsn: int


def parse_safekeepers(text: str, timeline: str | None) -> tuple[SafekeeperAddress, ...]:
    """`HOST:PORT,HOST:PORT`, or a libpq connection string or URI with one host or several.

    Raises OptionError, which shows nothing of the text.
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
    keywords = {"connect_timeout": str(CONNECT_SECONDS), **keywords, "replication": "true"}
    if timeline is not None:
        keywords["options"] = f"{keywords.get('options', '')} {_timeline_options(timeline)}".strip()
    return tuple(
        SafekeeperAddress(f"{host}:{port}", make_conninfo("", host=host, port=port, **keywords))
        for host, port in zip(hosts, ports, strict=True)
    )


def _keywords(text: str) -> dict[str, str]:
    if "=" not in text and "://" not in text:
        pairs = [part.strip().rpartition(":") for part in text.split(",")]
        hosts = [host.strip("[]") if colon else port for host, colon, port in pairs]
        ports = [port if colon else DEFAULT_PORT for _, colon, port in pairs]
        return {"host": ",".join(hosts), "port": ",".join(ports)}
    try:
        return {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except (psycopg.Error, UnicodeError):
        raise OptionError(
            "option safekeepers is not a libpq connection string",
            hint=_HINT,
        ) from None


def _timeline_options(timeline: str) -> str:
    try:
        parsed = TimelineId.parse(timeline)
    except MessageError as error:
        raise OptionError(f"option timeline: {error}") from error
    return f"-c tenant_id={parsed.tenant_id.hex()} -c timeline_id={parsed.timeline_id.hex()}"


class SafekeeperSession:
    """Every method raises WalInputError, and SafekeeperRefused with what the safekeeper said."""

    def __init__(self, address: SafekeeperAddress) -> None:
        self.name = address.name
        proof = required_auth(conninfo_to_dict(address.conninfo), os.environ)
        self._pgconn = pq.PGconn.connect(make_conninfo(address.conninfo, **proof).encode())
        if self._pgconn.status != pq.ConnStatus.OK:
            reason = self._pgconn.get_error_message()
            self.close()
            raise self._failed(f"connection failed: {reason}")

    def close(self) -> None:
        self._pgconn.finish()

    # ---- questions

    def position(self) -> Position:
        system_id, tli_text, commit_lsn, *_ = self.row("IDENTIFY_SYSTEM")
        (size,) = self.row("SHOW wal_segment_size")
        (start_lsn,) = self.row("SHOW timeline_start_lsn")
        tli = int(tli_text)
        history = TimelineHistory(tli)
        if tli > 1:
            try:
                history = TimelineHistory.parse(tli, self.row(f"TIMELINE_HISTORY {tli}")[1])
            except WalError as error:
                raise self._failed(str(error)) from error
        version = (self._pgconn.parameter_status(b"server_version") or b"0").decode()
        major = int(version.split()[0].partition(".")[0])
        server = ServerFacts(int(system_id), major * 10000, int(size[:-2]) << _UNITS[size[-2:]])
        return Position(server, history, int(Lsn.parse(commit_lsn)), int(Lsn.parse(start_lsn)))

    def commit_lsn(self) -> int:
        return int(Lsn.parse(self.row("IDENTIFY_SYSTEM")[2]))

    def row(self, command: str) -> list[str]:
        """The only row of an answer; a null is an empty text."""
        result = self._pgconn.exec_(command.encode())
        if result.status != pq.ExecStatus.TUPLES_OK or result.ntuples != 1:
            raise self._refused(result)
        return [(result.get_value(0, column) or b"").decode() for column in range(result.nfields)]

    def execute(self, command: str) -> None:
        result = self._pgconn.exec_(command.encode())
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise self._refused(result)

    # ---- streams

    def stream(self, lsn: int, tli: int) -> Iterator[bytes]:
        """The log from `lsn` on, as it comes, without an end but that of its timeline; an empty
        piece says that there is nothing new."""
        told_at = time.monotonic()
        if not self.start_stream(f"START_REPLICATION PHYSICAL {format_lsn(lsn)} TIMELINE {tli}"):
            return
        while (message := self._message()) is not None:
            if time.monotonic() - told_at > STATUS_SECONDS:
                told_at = time.monotonic()
                self.send_status(lsn, flush_lsn=0)
            if not isinstance(message, XLogData):
                yield b""
                continue
            if message.start_lsn != lsn:
                raise self._failed(
                    f"WAL at {format_lsn(message.start_lsn)} came, expected {format_lsn(lsn)}"
                )
            lsn += len(message.data)
            yield bytes(message.data)

    def start_stream(self, command: str) -> bool:
        """Whether there is a stream; there is none where a timeline was left right there."""
        try:
            self._pgconn.send_query(command.encode())
            result = self._pgconn.get_result()
        except psycopg.Error as error:
            raise self._failed(str(error)) from error
        if result is None or result.status not in (
            pq.ExecStatus.COPY_BOTH,
            pq.ExecStatus.TUPLES_OK,
        ):
            raise self._refused(result)
        return result.status == pq.ExecStatus.COPY_BOTH

    def send_status(self, write_lsn: int, *, flush_lsn: int) -> None:
        """`flush_lsn` 0: nothing is said of it, and a slot stays where it is."""
        status = StandbyStatus(write_lsn, flush_lsn, 0, postgres_time_us(time.time_ns()))
        try:
            self._pgconn.put_copy_data(status.encode())
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._failed(str(error)) from error

    def tell_flushed(self, command: str, lsn: int) -> None:
        """Start the stream that `command` says, say that all below `lsn` is flushed, and end it:
        when this returns, the safekeeper has heard it."""
        if not self.start_stream(command):
            return
        self.send_status(lsn, flush_lsn=lsn)
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._failed(str(error)) from error
        while self._message() is not None:
            continue
        while self._pgconn.get_result() is not None:
            continue

    def _message(self) -> ServerReplicationMessage | None:
        """None: the stream has ended in good order."""
        deadline = time.monotonic() + SILENCE_SECONDS
        try:
            while True:
                size, data = self._pgconn.get_copy_data(1)
                if size > 0:
                    return parse_server_message(data)
                if size < 0:
                    self._end_of_stream()
                    return None
                timeout = deadline - time.monotonic()
                if timeout <= 0 or not select.select([self._pgconn.socket], [], [], timeout)[0]:
                    raise self._failed(f"nothing was heard for {SILENCE_SECONDS:g} s")
                self._pgconn.consume_input()
        except (psycopg.Error, ProtocolError, OSError) as error:
            raise self._failed(str(error)) from error

    def _end_of_stream(self) -> None:
        """Raises SafekeeperRefused."""
        result = self._pgconn.get_result()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            raise self._refused(result)

    def _refused(self, result: pq.abc.PGresult | None) -> SafekeeperRefused:
        if result is None:
            return SafekeeperRefused(f"safekeeper {self.name}: the connection was closed")
        fields = pq.DiagnosticField
        message, hint, sqlstate = (
            (result.error_field(code) or b"").decode(errors="replace")
            for code in (fields.MESSAGE_PRIMARY, fields.MESSAGE_HINT, fields.SQLSTATE)
        )
        text = message or self._pgconn.get_error_message()
        return SafekeeperRefused(
            f"safekeeper {self.name}: {' '.join(text.split())}", hint=hint, sqlstate=sqlstate
        )

    def _failed(self, reason: str) -> WalInputError:
        return WalInputError(f"safekeeper {self.name}: {' '.join(reason.split())}")
