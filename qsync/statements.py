"""The SQL of a two-phase transaction, and Postgres' answers to it. Pure.

PREPARE must not wait for a synchronous standby: during that wait the gid is listed, but busy, and
no session can commit it or roll it back. So it runs with SET LOCAL synchronous_commit = local.
COMMIT PREPARED and ROLLBACK PREPARED would wait too, and allow no other statement in the same
simple query. On a server with synchronous standbys they run in a pipeline, each statement in its
own transaction, which changes the setting before the command and restores it afterwards. Source:
Postgres `twophase.c`, `xact.c` (PreventInTransactionBlock).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

import psycopg

from quorum_wal.qsync.gid import Gid

#: From Postgres' errcodes.txt.
BUSY = "55000"  # another session is finishing it; of PREPARE: max_prepared_transactions is 0
NOT_OWNER = "42501"  # it was prepared under a SET LOCAL ROLE
CANNOT_PREPARE = "0A000"
LIMBO_FULL = "53200"

PREPARE_TAG = "PREPARE TRANSACTION"
_MARK = "qsync.transaction"
_EPOCH = re.compile(r"(?P<seconds>[0-9]{1,12})(\.(?P<fraction>[0-9]{1,6}))?")

#: The facts of a transaction before PREPARE: whether it is still the one that the block began; its
#: xid, if it wrote anything; the insert position before PREPARE; the server's clock; the server's
#: start time; whether COMMIT PREPARED may wait for a standby; the backend. Function calls only:
#: operators and subqueries double the cost.
FACTS = (
    f"SELECT current_setting('{_MARK}', true), pg_current_xact_id_if_assigned(), "
    "pg_current_wal_insert_lsn(), pg_walfile_name(pg_current_wal_insert_lsn()), "
    "extract(epoch FROM clock_timestamp()), extract(epoch FROM pg_postmaster_start_time()), "
    "current_setting('synchronous_standby_names'), pg_backend_pid()"
).encode()
FLUSH_LSN = b"SELECT pg_current_wal_flush_lsn()"
#: The flush position of a primary, its timeline (the first digits of the file name), and the
#: server's start time.
PLACE = (
    b"SELECT pg_current_wal_flush_lsn(), pg_walfile_name(pg_current_wal_flush_lsn()), "
    b"extract(epoch FROM pg_postmaster_start_time())"
)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one statement: its command tag and first row, or its error."""

    tag: str = ""
    row: tuple[str | None, ...] | None = None
    error: psycopg.Error | None = None

    @property
    def value(self) -> str:
        """The value of a row with one column. Raises the error."""
        if self.error is not None:
            raise self.error
        assert self.row is not None, self
        (value,) = self.row
        assert value is not None, self
        return value


def first_error(results: Sequence[Result]) -> psycopg.Error | None:
    return next((result.error for result in results if result.error is not None), None)


@cache
def begin(
    isolation_level: psycopg.IsolationLevel | None, read_only: bool | None, deferrable: bool | None
) -> bytes:
    """BEGIN with the attributes of a connection. It also sets a mark, by which FACTS distinguishes
    this transaction from one that began after a COMMIT inside the block."""
    words = ["BEGIN"]
    if isolation_level is not None:
        words.append(f"ISOLATION LEVEL {isolation_level.name.replace('_', ' ')}")
    if read_only is not None:
        words.append("READ ONLY" if read_only else "READ WRITE")
    if deferrable is not None:
        words.append("DEFERRABLE" if deferrable else "NOT DEFERRABLE")
    return f"{' '.join(words)}; SET LOCAL {_MARK} = 'on'".encode()


@dataclass(frozen=True, slots=True)
class Facts:
    """The row of FACTS. `xid` is None for a transaction that wrote nothing."""

    is_ours: bool
    xid: int | None
    lsn: int
    tli: int
    now_ms: int
    server_start_us: int
    has_standby_names: bool
    backend_pid: int

    @classmethod
    def of(cls, row: tuple[str | None, ...]) -> Self:
        mark, xid, lsn, wal_file, epoch, start_epoch, standby_names, backend_pid = row
        assert lsn is not None
        assert wal_file is not None
        assert epoch is not None
        assert start_epoch is not None
        assert backend_pid is not None
        return cls(
            mark == "on",
            None if xid is None else int(xid),
            parse_lsn(lsn),
            int(wal_file[:8], 16),
            round(float(epoch) * 1000),
            parse_epoch_us(start_epoch),
            bool(standby_names),
            int(backend_pid),
        )


def prepare(gid: Gid) -> bytes:
    """Three statements for one simple query. The row of the last one is an upper bound of the end
    of PREPARE."""
    return b"; ".join(
        (
            b"SET LOCAL synchronous_commit = local",
            f"PREPARE TRANSACTION '{gid}'".encode(),
            FLUSH_LSN,
        )
    )


def find_prepared(gid: Gid) -> bytes:
    """Returns a row with an upper bound of the end of PREPARE if the gid is prepared."""
    return FLUSH_LSN + _listed(gid)


def find_owner(gid: Gid) -> bytes:
    """Returns the role that may finish the gid."""
    return b"SELECT owner" + _listed(gid)


#: The facts of a session that is to finish a transaction, perhaps on another server than the one
#: that prepared it: its timeline, whether COMMIT PREPARED may wait for a standby, the backend.
SESSION = (
    b"SELECT pg_walfile_name(pg_current_wal_flush_lsn()), "
    b"current_setting('synchronous_standby_names'), pg_backend_pid()"
)
#: Whether this transaction is still the one that the block began.
MARK = f"SELECT current_setting('{_MARK}', true)".encode()
IN_RECOVERY = b"SELECT pg_is_in_recovery()"


@dataclass(frozen=True, slots=True)
class Session:
    """The row of SESSION."""

    tli: int
    has_standby_names: bool
    backend_pid: int

    @classmethod
    def of(cls, row: tuple[str | None, ...]) -> Self:
        wal_file, standby_names, backend_pid = row
        assert wal_file is not None
        assert backend_pid is not None
        return cls(int(wal_file[:8], 16), bool(standby_names), int(backend_pid))


def _listed(gid: Gid) -> bytes:
    return f" FROM pg_prepared_xacts WHERE gid = '{gid}'".encode()


@dataclass(frozen=True, slots=True)
class Finish:
    """COMMIT PREPARED or ROLLBACK PREPARED; with `returns_lsn`, also the flush position after it.

    `meanwhile` are settings of the session for this command only. SET LOCAL would need a
    transaction block, in which Postgres refuses the command. Law: never use `meanwhile` through a
    pooler. It may run each of these transactions in another session, and leave a setting changed
    there.
    """

    gid: Gid
    is_commit: bool
    returns_lsn: bool = True
    meanwhile: tuple[tuple[str, str], ...] = ()

    @property
    def statements(self) -> tuple[bytes, ...]:
        """For one pipeline, each in its own transaction."""
        command = f"{'COMMIT' if self.is_commit else 'ROLLBACK'} PREPARED '{self.gid}'"
        kept = [_set(f"qsync.{name}", f"current_setting('{name}')") for name, _ in self.meanwhile]
        changed = [_set(name, _literal(value)) for name, value in self.meanwhile]
        restored = [_set(name, f"current_setting('qsync.{name}')") for name, _ in self.meanwhile]
        texts = (*kept, *changed, command, *restored)
        place = (FLUSH_LSN,) if self.returns_lsn else ()
        return (*(text.encode() for text in texts), *place)

    def error(self, results: Sequence[Result]) -> psycopg.Error | None:
        """The error of the command itself."""
        return results[2 * len(self.meanwhile)].error

    def flush_lsn(self, results: Sequence[Result]) -> int:
        """An upper bound of the end of the command; 0 if it is unknown."""
        is_told = self.returns_lsn and results[-1].error is None
        return parse_lsn(results[-1].value) if is_told else 0

    def is_restored(self, results: Sequence[Result]) -> bool:
        """Whether the session has its previous settings again."""
        first = 2 * len(self.meanwhile) + 1
        return first_error(results[first : first + len(self.meanwhile)]) is None


def _set(name: str, value: str) -> str:
    return f"SELECT set_config('{name}', {value}, false)"


def _literal(text: str) -> str:
    """Correct for every value of standard_conforming_strings."""
    doubled = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{doubled}'"


def parse_lsn(text: str) -> int:
    """`16/B374D848`. Raises psycopg.DataError."""
    high, _, low = text.partition("/")
    try:
        return int(high, 16) << 32 | int(low, 16)
    except ValueError as error:
        raise psycopg.DataError(f'expected an LSN from the server, got "{text[:30]}"') from error


def parse_epoch_us(text: str) -> int:
    """Parse `1795526266.123456`, the result of extract(epoch FROM ...): numeric, or in Postgres 13
    double precision, which is exact for dates of this century. Raises psycopg.DataError."""
    match = _EPOCH.fullmatch(text)
    if match is None:
        raise psycopg.DataError(f'expected seconds from the server, got "{text[:30]}"')
    return int(match["seconds"] + (match["fraction"] or "").ljust(6, "0"))


def format_lsn(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
