"""The replication protocol's BASE_BACKUP: a server's files as a stream of tar archives.

    BASE_BACKUP (...)  ->  start LSN and timeline  |  tablespaces  |  COPY of messages  |  stop LSN

    'n' name\\0 path\\0    an archive begins; path is the tablespace's, or "" for the data directory
    'd' bytes             data of that archive, or of the manifest
    'm'                   the manifest begins
    'p' u64               bytes read so far, sent now and then

This is the protocol since Postgres 15. Before, each archive was a COPY of its own, and the command
had another syntax. The server sends a warning for each page that fails its checksum, and an error
after the stop LSN. The backup is complete then, with the damage that the server has. Sources:
Postgres `basebackup.c`, `basebackup_copy.c`, `repl_gram.y`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from psycopg import pq

from quorum_wal.backup.errors import BackupError
from quorum_wal.pgclient.errors import PgClientError, ServerError
from quorum_wal.pgclient.results import next_result, receive_copy_data, send_command
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.lsn import Lsn

VERSION_MIN = 150000
DATA_CORRUPTED = "XX001"
CHECKSUM_WARNING = "checksum verification failed"
MANIFEST = "backup_manifest"


@dataclass(frozen=True, slots=True)
class NewArchive:
    """The data that follows belongs to this archive, or to the manifest."""

    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class ArchiveData:
    """The next bytes."""

    data: memoryview


@dataclass(frozen=True, slots=True)
class Progress:
    """How many bytes of its estimate the server has read."""

    done_bytes: int


Message = NewArchive | ArchiveData | Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupOptions:
    """`max_rate_kb` is per second; 0 means no limit. With `is_fast` False the server spreads the
    checkpoint over minutes, as it does with its own checkpoints."""

    label: str
    is_fast: bool = True
    max_rate_kb: int = 0

    def command(self) -> str:
        options = [
            f"LABEL {_literal(self.label)}",
            "PROGRESS",
            f"CHECKPOINT '{'fast' if self.is_fast else 'spread'}'",
            "WAL false",
            "WAIT false",  # safekeepers archive the WAL; do not wait for archive_command
            "MANIFEST 'yes'",
        ]
        if self.max_rate_kb:
            options.append(f"MAX_RATE {self.max_rate_kb}")
        return f"BASE_BACKUP ({', '.join(options)})"


@dataclass(frozen=True, slots=True)
class BackupPosition:
    """Where a backup began or ended."""

    lsn: int
    tli: int


class BaseBackup:
    """One backup over `connection`, a physical replication connection.

    Call `start()`, then read all of `messages()`, then call `finish()`. Every method raises
    BackupError. To cancel the backup, close the connection.
    """

    def __init__(self, connection: psycopg.Connection, options: BackupOptions) -> None:
        self._connection = connection
        self._pgconn = connection.pgconn
        self._options = options
        #: The server's estimate of all archives together.
        self.estimated_bytes = 0
        #: The server's warnings about pages with a wrong checksum.
        self.checksum_failures: list[str] = []

    def start(self) -> BackupPosition:
        """Returns after the server has completed its checkpoint."""
        if self._connection.info.server_version < VERSION_MIN:
            version = self._connection.info.server_version
            raise BackupError(
                f"a base backup needs Postgres {VERSION_MIN // 10000} or newer, "
                f"the server is {version // 10000}",
                hint="Take one with pg_basebackup; its recovery can use sk archive fetch.",
            )
        self._connection.add_notice_handler(self._notice)
        with _errors():
            send_command(self._pgconn, self._options.command())
        began = _position(self._result(pq.ExecStatus.TUPLES_OK))
        tablespaces = self._result(pq.ExecStatus.TUPLES_OK)
        sizes = [tablespaces.get_value(row, 2) for row in range(tablespaces.ntuples)]
        self.estimated_bytes = 1024 * sum(int(size or 0) for size in sizes)
        self._result(pq.ExecStatus.COPY_OUT)
        return began

    def messages(self) -> Iterator[Message]:
        """The data of a message is valid until the next message is read."""
        while True:
            with _errors():
                data = receive_copy_data(self._pgconn)
            if data is None:
                return
            yield parse_message(data)

    def finish(self) -> BackupPosition:
        """The end of the backup: a server started from it is consistent at that position."""
        result = self._result(pq.ExecStatus.COMMAND_OK, pq.ExecStatus.TUPLES_OK)
        if result.status == pq.ExecStatus.COMMAND_OK:
            result = self._result(pq.ExecStatus.TUPLES_OK)
        ended = _position(result)
        with _errors():
            try:
                while next_result(self._pgconn) is not None:
                    continue
            except ServerError as error:
                if error.sqlstate != DATA_CORRUPTED:
                    raise
                self.checksum_failures = self.checksum_failures or [_error_text(error)]
        return ended

    def _result(self, *expected: pq.ExecStatus) -> pq.abc.PGresult:
        with _errors():
            result = next_result(self._pgconn)
        if result is None:
            raise BackupError("the server ended the base backup before its last result")
        if result.status not in expected:
            status = pq.ExecStatus(result.status).name
            raise BackupError(f"unexpected result of BASE_BACKUP: {status}")
        return result

    def _notice(self, notice: psycopg.errors.Diagnostic) -> None:
        text = notice.message_primary or ""
        if CHECKSUM_WARNING in text:
            self.checksum_failures.append(text)


def parse_message(payload: memoryview) -> Message:
    """One CopyData of the stream. Raises BackupError."""
    kind = bytes(payload[:1])
    if kind == b"d":
        return ArchiveData(payload[1:])
    if kind == b"n":
        parts = bytes(payload[1:]).split(b"\0")
        if len(parts) != 3 or parts[2]:
            raise BackupError(f"invalid archive in the base backup: {bytes(payload[1:65])!r}")
        return NewArchive(_archive_name(parts[0]), _tablespace_path(parts[1]))
    if kind == b"m":
        return NewArchive(MANIFEST)
    if kind == b"p" and len(payload) == 9:
        return Progress(int.from_bytes(payload[1:], "big"))
    raise BackupError(f"unknown message {kind!r} in the base backup, {len(payload)} bytes")


def _archive_name(name: bytes) -> str:
    """The name becomes part of a key, so only the names that Postgres sends are accepted."""
    text = name.decode(errors="replace")
    if not text.endswith(".tar") or not text.removesuffix(".tar").isalnum():
        raise BackupError(f"unexpected archive {text!r} in the base backup")
    return text


def _tablespace_path(path: bytes) -> str:
    try:
        return path.decode()
    except UnicodeDecodeError as error:
        raise BackupError(f"the path of a tablespace is not UTF-8: {path[:64]!r}") from error


def _position(result: pq.abc.PGresult) -> BackupPosition:
    lsn, tli = (result.get_value(0, column) or b"" for column in range(2))
    try:
        return BackupPosition(int(Lsn.parse(lsn.decode())), int(tli))
    except (WalError, ValueError) as error:
        raise BackupError(f"invalid position of the base backup: {error}") from error


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def _errors() -> Iterator[None]:
    """Turns an error of the server, or a lost connection, into a BackupError."""
    try:
        yield
    except ServerError as error:
        raise BackupError(_error_text(error), hint=error.hint) from error
    except PgClientError as error:
        raise BackupError(f"lost the server during the base backup: {error}") from error


def _error_text(error: ServerError) -> str:
    return f"base backup: {error}"
