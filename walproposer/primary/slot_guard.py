"""Drops a new replication slot if attaching fails, so that no unused slot holds WAL on the primary.

Attaching creates the slot before its other checks, because only a slot keeps the WAL that the
timeline will begin with. If one of those checks fails, the new slot is dropped. A slot that existed
before is never dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import psycopg
import structlog

from quorum_wal.pgclient.errors import first_line
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

log = structlog.get_logger()

_SLOT_EXISTS = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s)"
_DROP_SLOT = (
    "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    " WHERE slot_name = %s AND active_pid IS NULL"
)


@contextmanager
def slot_dropped_on_failure(
    address: PrimaryAddress, questions: psycopg.Connection | None = None
) -> Iterator[None]:
    """If the block fails, drop the slot, unless it existed before. `questions`: an open connection
    to use.

    Raises WalProposerError, before the block, if the primary cannot be reached.
    """
    with (
        address.connected(questions) as connection,
        converting_errors("could not inspect the primary"),
    ):
        row = connection.execute(_SLOT_EXISTS, (address.slot,)).fetchone()
        existed = row is not None and row[0]
    try:
        yield
    except BaseException:
        if not existed:
            _drop(address)
        raise


def _drop(address: PrimaryAddress) -> None:
    try:
        with closing(address.connect()) as connection:
            connection.execute(_DROP_SLOT, (address.slot,))
    except (WalProposerError, psycopg.Error) as error:
        log.warning(
            "a replication slot may be left on the primary",
            slot=address.slot,
            reason=first_line(error),
        )
