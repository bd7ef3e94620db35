"""Sets synchronous_standby_names so that the primary waits for us, and resets it.

It is set only once the primary reports us as `streaming`. Before that, every commit would hang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from threading import Event, Thread

import psycopg
import structlog
from psycopg import sql

from quorum_wal.telemetry.stop_signal import StopSignal
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import CommitsWait, Refusal, WalProposerError
from quorum_wal.walproposer.primary.commit_waits import (
    CommitWaits,
    may_see_waits,
    read_commit_waits,
)
from quorum_wal.walproposer.primary.log_marker import forget_log
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.primary_settings import CHECKPOINTER_OBEYS
from quorum_wal.walproposer.primary.slot import read_slot
from quorum_wal.walproposer.primary.standby_names import one_of

log = structlog.get_logger()

POLL_SECONDS = 0.1
RELOAD_SECONDS = 5.0
# Since the postmaster loaded the configuration. An idle checkpointer has woken up by then.
SETTLE_SECONDS = 0.1

# A new session has the configuration that the postmaster loaded last, so it proves a reload. A role
# that may not see the checkpointer's wait cannot tell more.
_STATE = (
    "SELECT EXISTS (SELECT FROM pg_stat_replication"
    "  WHERE application_name = %s AND state = 'streaming'),"
    " current_setting('synchronous_standby_names'),"
    f" coalesce(({CHECKPOINTER_OBEYS}), true)"
    " AND extract(epoch FROM clock_timestamp() - pg_conf_load_time()) > %s"
)


def setting_statement(application_name: str) -> str:
    """The statement to run by hand."""
    return (
        f"ALTER SYSTEM SET synchronous_standby_names = '{application_name}'; "
        "SELECT pg_reload_conf();"
    )


def configure_when_streaming(address: PrimaryAddress, stopping: StopSignal) -> Event:
    """Start a thread that waits until the primary reports us as streaming, then sets it, once.
    Returns an event that is set when commits wait for us."""
    done = Event()
    configuration = _Configuration(address)

    def run() -> None:
        while not stopping.is_set:
            try:
                if configuration.is_in_force():
                    done.set()
                    return
            except (WalProposerError, psycopg.Error) as error:
                log.warning("could not configure the primary yet", reason=str(error))
            stopping.wait(POLL_SECONDS)

    Thread(target=run, name="configure", daemon=True).start()
    return done


class _Configuration:
    """Is in force when the checkpointer has applied it: until then no commit waits, whatever a
    session reads. Source: Postgres `syncrep.c` (SyncRepUpdateSyncStandbysDefined)."""

    def __init__(self, address: PrimaryAddress) -> None:
        self._address = address
        self._name = address.application_name
        self._set_at: float | None = None
        self._has_warned = False

    def is_in_force(self) -> bool:
        """Set it if the primary reports us as streaming and does not have it yet."""
        with closing(self._address.connect()) as connection:
            row = connection.execute(_STATE, (self._name, SETTLE_SECONDS)).fetchone()
            assert row is not None
            is_streaming, names, is_applied = row
            if one_of(names) != (self._name,):
                if is_streaming:
                    self._set(connection, names)
                return False
        is_in_force: bool = is_streaming and is_applied
        if is_in_force and self._set_at is not None:
            log.info("commits now wait for the quorum", synchronous_standby_names=self._name)
        return is_in_force

    def _set(self, connection: psycopg.Connection, names: str) -> None:
        now = time.monotonic()
        if self._set_at is None:
            _set(connection, self._name)
            self._set_at = now
        elif now - self._set_at > RELOAD_SECONDS and not self._has_warned:
            self._has_warned = True
            log.warning(
                "commits do not wait for the quorum: synchronous_standby_names keeps its value",
                value=names,
                hint="Remove the option or configuration file entry that overrides it.",
            )


def reset(address: PrimaryAddress, *, drop_slot: bool, force: bool) -> list[str]:
    """Reset it: commits no longer wait. Returns what was done, a line each. Raises
    WalProposerError: CommitsWait, unless `force`, if commits wait that would return with one
    copy."""
    with closing(address.connect()) as connection, converting_errors("could not detach"):
        if drop_slot:
            _check_slot_free(connection, address)
        waits = read_commit_waits(connection)
        if not force:
            _check_waits(connection, waits)
        _set(connection, None)
        _wait_reset(address)
        done = ["synchronous_standby_names was reset, commits no longer wait for a quorum"]
        if waits.stuck_count:
            done.append(
                f"{waits}: they return now, with one copy, on this primary; no quorum has "
                "confirmed them"
            )
        if drop_slot:
            done += _drop_slots(connection, address)
        elif read_slot(connection, address.slot) is not None:
            done.append(
                f'replication slot "{address.slot}" keeps WAL on the primary; --drop-slot removes '
                "it, once the proposer has stopped"
            )
    return done


def _check_slot_free(connection: psycopg.Connection, address: PrimaryAddress) -> None:
    slot = read_slot(connection, address.slot)
    if slot is not None and slot.holder_pid is not None:
        raise Refusal(
            f'replication slot "{address.slot}" is active, by "{slot.holder}" (pid '
            f"{slot.holder_pid}): nothing was changed",
            hint="Release commits from the quorum first: sk detach. Then stop the proposer.",
        )


def _check_waits(connection: psycopg.Connection, waits: CommitWaits) -> None:
    if waits.stuck_count:
        raise CommitsWait(
            f"{waits}: they would return with one copy, on this primary, and a failover would lose "
            "them",
            hint="Restart the quorum or the proposer: sk status shows what is wrong. To release "
            "the commits anyway: --force.",
        )
    if not may_see_waits(connection):
        raise Refusal(
            "the role may not see whether commits wait that would return with one copy",
            hint="Use a role that has pg_read_all_stats. To detach anyway: --force.",
        )


def _wait_reset(address: PrimaryAddress) -> None:
    """Wait until new sessions have the value: the postmaster has reloaded, and signalled the
    checkpointer."""
    deadline = time.monotonic() + RELOAD_SECONDS
    while (value := _names_in_force(address)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    if value:
        raise Refusal(
            f"commits still wait: synchronous_standby_names is still {value}",
            hint="Remove the setting from postgresql.conf or the command line: ALTER SYSTEM RESET "
            "did not change it.",
        )


def _names_in_force(address: PrimaryAddress) -> str:
    with closing(address.connect()) as connection:
        row = connection.execute("SHOW synchronous_standby_names").fetchone()
    return str(row[0]) if row is not None else ""


def _drop_slots(connection: psycopg.Connection, address: PrimaryAddress) -> Iterator[str]:
    if read_slot(connection, address.slot) is not None:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (address.slot,))
        yield f'replication slot "{address.slot}" was dropped'
    for name in forget_log(connection):
        yield f'"{name}" was dropped: the primary belongs to no log now'


def _set(connection: psycopg.Connection, application_name: str | None) -> None:
    if application_name is None:
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
    else:
        # Identifier and Literal quote the name: a list of quoted identifiers inside a literal.
        value = sql.Literal(sql.Identifier(application_name).as_string(connection))
        connection.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(value))
    connection.execute("SELECT pg_reload_conf()")
