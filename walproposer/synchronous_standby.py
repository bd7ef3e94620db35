"""Making the primary wait for us: synchronous_standby_names, and taking it back.

It is set only once the primary calls us `streaming`: before, every commit would hang.
"""

from __future__ import annotations

from contextlib import closing
from threading import Thread

import psycopg
import structlog
from psycopg import sql

from telemetry.stop_signal import StopSignal
from walproposer.errors import Refusal, WalProposerError
from walproposer.upstream import PrimaryAddress

log = structlog.get_logger()

POLL_SECONDS = 0.1

IS_STREAMING = (
    "SELECT count(*) FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"
)


def setting_statement(application_name: str) -> str:
    """What to run by hand."""
    return (
        f"ALTER SYSTEM SET synchronous_standby_names = '{application_name}'; "
        "SELECT pg_reload_conf();"
    )


def configure_when_streaming(address: PrimaryAddress, stopping: StopSignal) -> None:
    """In a thread: wait until the primary sees us streaming, then set it, once."""

    def run() -> None:
        while not stopping.is_set:
            try:
                if _configure(address):
                    return
            except (WalProposerError, psycopg.Error) as error:
                log.warning("could not configure the primary yet", reason=str(error))
            stopping.wait(POLL_SECONDS)

    Thread(target=run, name="configure", daemon=True).start()


def _configure(address: PrimaryAddress) -> bool:
    with closing(address.connect()) as connection:
        row = connection.execute(IS_STREAMING, (address.application_name,)).fetchone()
        if row is None or row[0] == 0:
            return False
        names = connection.execute("SHOW synchronous_standby_names").fetchone()
        if names is None or names[0] != address.application_name:
            _set(connection, address.application_name)
            log.info(
                "commits now wait for the quorum",
                synchronous_standby_names=address.application_name,
            )
        return True


def reset(address: PrimaryAddress, drop_slot: bool) -> list[str]:
    """Commits no longer wait. Returns what was done, a line each. Raises WalProposerError."""
    done = []
    with closing(address.connect()) as connection:
        try:
            _set(connection, None)
            done.append("synchronous_standby_names was reset, commits no longer wait for a quorum")
            if drop_slot:
                connection.execute("SELECT pg_drop_replication_slot(%s)", (address.slot,))
                done.append(f'replication slot "{address.slot}" was dropped')
        except psycopg.Error as error:
            message = error.diag.message_primary or str(error)
            raise Refusal(
                f"could not detach: {message}", hint=error.diag.message_hint or ""
            ) from error
    return done


def _set(connection: psycopg.Connection, application_name: str | None) -> None:
    if application_name is None:
        connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
    else:
        # Not a name that could be quoted wrongly: a list of quoted identifiers inside a literal.
        value = sql.Literal(sql.Identifier(application_name).as_string(connection))
        connection.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(value))
    connection.execute("SELECT pg_reload_conf()")
