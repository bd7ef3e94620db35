"""The state of a primary that a preflight needs, read with queries that change nothing.

Any role can read what is required. What only a privileged role can read (the data directory) may be
missing. Sources: Postgres `system_views.sql`, pg_settings, pg_db_role_setting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from quorum_wal.pg_server.postmaster_file import read_postmaster_file
from quorum_wal.pgclient.errors import PgClientError
from quorum_wal.pgclient.questions import identify_system
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.connection import converting_errors, open_connection
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.commit_waits import (
    NO_WAITS,
    CommitWaits,
    may_see_waits,
    read_commit_waits,
)
from quorum_wal.walproposer.primary.log_marker import read_markers
from quorum_wal.walproposer.primary.prepared_transactions import PreparedTransaction, read_prepared
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.walsenders import WalSender, read_walsenders

COMMIT_SETTING = "synchronous_commit"
SETTINGS = (
    "wal_level",
    "max_wal_senders",
    "max_replication_slots",
    "synchronous_standby_names",
    COMMIT_SETTING,
    "fsync",
    "full_page_writes",
    "max_slot_wal_keep_size",  # MB, -1 for no limit
    "wal_sender_timeout",  # ms, 0 for none
    "max_prepared_transactions",
    "default_transaction_read_only",
    "data_directory",
)

_SERVER = (
    "SELECT current_setting('server_version_num')::int, pg_is_in_recovery(),"
    " (SELECT system_identifier::text FROM pg_control_system()),"
    " (SELECT bytes_per_wal_segment FROM pg_control_init()),"
    " CASE WHEN pg_is_in_recovery() THEN NULL ELSE pg_current_wal_flush_lsn()::text END,"
    " (SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_replication_slots)"
)
_ROLE = (
    "SELECT rolname, rolreplication OR rolsuper, rolsuper FROM pg_roles"
    " WHERE rolname = current_user"
)
_SLOT = (
    "SELECT s.slot_type, s.wal_status, s.active_pid, coalesce(r.application_name, '')"
    " FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid"
    " WHERE s.slot_name = %s"
)
_OVERRIDES = (
    "SELECT coalesce(d.datname, ''), coalesce(r.rolname, ''), split_part(setting, '=', 2)"
    " FROM pg_db_role_setting s CROSS JOIN unnest(s.setconfig) AS setting"
    " LEFT JOIN pg_database d ON d.oid = s.setdatabase LEFT JOIN pg_roles r ON r.oid = s.setrole"
    " WHERE setting LIKE 'synchronous_commit=%%' ORDER BY 1, 2"
)
_SETTINGS = "SELECT name, setting, source FROM pg_settings WHERE name = ANY(%s)"
_IN_THE_FILES = (
    "SELECT name, coalesce((SELECT f.setting FROM pg_file_settings f"
    "  WHERE f.name = s.name AND f.error IS NULL ORDER BY seqno DESC LIMIT 1), boot_val)"
    " FROM pg_settings s WHERE name = %(name)s"
)
# Sources of a setting that applies to this session, but perhaps to no other.
_SESSION_SOURCES = ("global", "database", "user", "database user", "client", "session")
# In both of these waits the checkpointer applies a reload at once. NULL for a role that may not see
# it. Source: Postgres `checkpointer.c`.
CHECKPOINTER_OBEYS = (
    "SELECT wait_event IN ('CheckpointerMain', 'CheckpointWriteDelay')"
    " FROM pg_stat_activity WHERE backend_type = 'checkpointer'"
)
_CHECKPOINTER = (
    "SELECT extract(epoch FROM clock_timestamp() - pg_conf_load_time())::float8,"
    f" coalesce(({CHECKPOINTER_OBEYS}), true)"
)


@dataclass(frozen=True, slots=True)
class Slot:
    """A row of pg_replication_slots; `holder` is the application that uses it now, or ""."""

    kind: str
    wal_status: str | None
    holder_pid: int | None
    holder: str


@dataclass(frozen=True, slots=True)
class Override:
    """ALTER DATABASE, ALTER ROLE or ALTER ROLE ... IN DATABASE ... SET synchronous_commit."""

    database: str
    role: str
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrimarySettings:
    """`settings` are those of pg_settings, in the units above, for the whole server: a value that
    ALTER ROLE gave to our own session is not used. A setting that may not be read is absent.

    `flush_lsn` is None on a standby. `replication_error` is why no replication connection can be
    made, "" if one can. `clock_ahead_seconds` is the difference of its clock to ours.
    `disk_free_bytes` is known if the server runs on this machine. `log_markers` name the log that
    it belongs to (`log_marker.py`). `sees_all`: the role may see what other sessions do; otherwise
    waiting commits are unknown. `standbys` are all clients that the primary streams to. The
    configuration was loaded `config_age_seconds` ago; it may not be in effect if the checkpointer
    does not apply reloads now.
    """

    version: int
    in_recovery: bool
    system_id: int
    wal_seg_size: int
    flush_lsn: int | None
    walsenders: int
    slots: int
    role: str
    may_replicate: bool
    is_superuser: bool
    replication_error: str
    settings: Mapping[str, str]
    slot: Slot | None
    overrides: tuple[Override, ...]
    standbys: tuple[WalSender, ...]
    clock_ahead_seconds: float
    disk_free_bytes: int | None
    log_markers: tuple[str, ...] = ()
    sees_all: bool = True
    commit_waits: CommitWaits = NO_WAITS
    config_age_seconds: float = 0.0
    checkpointer_obeys: bool = True
    prepared: tuple[PreparedTransaction, ...] = ()

    @property
    def major(self) -> int:
        return self.version // 10000


def read_primary_settings(address: PrimaryAddress) -> PrimarySettings:
    """Raises WalProposerError."""
    # Without our usual options, which would hide the server's own synchronous_commit.
    with closing(address.connect(options="")) as connection:
        return inspect_primary(connection, address, _replication_error(address))


def inspect_primary(
    connection: psycopg.Connection, address: PrimaryAddress, replication_error: str = ""
) -> PrimarySettings:
    """Like read_primary_settings(), over an open connection. Raises WalProposerError."""
    with converting_errors("could not inspect the primary"):
        return _read(connection, address, replication_error)


def _read(
    connection: psycopg.Connection, address: PrimaryAddress, replication_error: str
) -> PrimarySettings:
    server = _one_row(connection, _SERVER)
    version, in_recovery, system_id, wal_seg_size, flush_lsn, walsenders, slots = server
    config_age_seconds, checkpointer_obeys = _one_row(connection, _CHECKPOINTER)
    role, may_replicate, is_superuser = _one_row(connection, _ROLE)
    slot = connection.execute(_SLOT, (address.slot,)).fetchone()
    settings = _settings(connection)
    return PrimarySettings(
        version=version,
        in_recovery=in_recovery,
        system_id=int(system_id),
        wal_seg_size=wal_seg_size,
        flush_lsn=int(Lsn.parse(flush_lsn)) if flush_lsn else None,
        walsenders=walsenders,
        slots=slots,
        role=role,
        may_replicate=may_replicate,
        is_superuser=is_superuser,
        replication_error=replication_error,
        settings=settings,
        slot=Slot(*slot) if slot is not None else None,
        overrides=tuple(Override(*row) for row in connection.execute(_OVERRIDES).fetchall()),
        standbys=read_walsenders(connection),
        clock_ahead_seconds=_clock_ahead_seconds(connection),
        disk_free_bytes=_disk_free_bytes(connection, settings.get("data_directory")),
        log_markers=read_markers(connection),
        sees_all=may_see_waits(connection),
        commit_waits=read_commit_waits(connection),
        config_age_seconds=config_age_seconds,
        checkpointer_obeys=checkpointer_obeys,
        prepared=read_prepared(connection),
    )


def _settings(connection: psycopg.Connection) -> dict[str, str]:
    rows = connection.execute(_SETTINGS, (list(SETTINGS),)).fetchall()
    settings = {name: setting for name, setting, _ in rows}
    if {name: source for name, _, source in rows}[COMMIT_SETTING] in _SESSION_SOURCES:
        del settings[COMMIT_SETTING]
        settings.update(_in_the_files(connection, COMMIT_SETTING))
    return settings


def _in_the_files(connection: psycopg.Connection, name: str) -> dict[str, str]:
    """The server's own value of a setting that was changed for our session; empty if the role may
    not read it."""
    try:
        return dict(connection.execute(_IN_THE_FILES, {"name": name}).fetchall())
    except psycopg.errors.InsufficientPrivilege:
        return {}


def _one_row(connection: psycopg.Connection, query: str) -> tuple[Any, ...]:
    row = connection.execute(query).fetchone()
    assert row is not None, query
    return row


def _replication_error(address: PrimaryAddress) -> str:
    """Why no replication connection can be made; pg_hba.conf has separate entries for them."""
    try:
        connection = open_connection(
            address.dsn,
            f"the primary ({address})",
            replication="true",
            application_name="sk",
        )
        with closing(connection):
            identify_system(connection.pgconn)
    except (WalProposerError, PgClientError) as error:
        return " ".join(str(error).split())
    return ""


def _clock_ahead_seconds(connection: psycopg.Connection) -> float:
    """Its clock minus ours, taken in the middle of the query."""
    asked_ns = time.time_ns()
    (seconds,) = _one_row(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    return float(seconds) - (asked_ns + time.time_ns()) / 2e9


def _disk_free_bytes(connection: psycopg.Connection, data_directory: str | None) -> int | None:
    """Free space of the file system of pg_wal, if the server's data directory is on this
    machine."""
    if data_directory is None:
        return None
    wal = os.path.join(data_directory, "pg_wal")
    try:
        server = read_postmaster_file(Path(data_directory))
        if server is None or server.port != connection.info.port:
            return None  # a directory with the same name, of another server
        stat = os.statvfs(wal)
    except OSError:
        return None  # the directory is on another machine, or not readable
    return stat.f_bavail * stat.f_frsize
