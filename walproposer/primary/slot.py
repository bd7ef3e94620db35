"""Our replication slot on the primary: it holds the WAL that the safekeepers do not have yet.

A slot has one holder. We may terminate the connection of a predecessor, never that of another
program.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import psycopg
import structlog

from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

log = structlog.get_logger()

# A fenced predecessor releases the slot within moments. The connection of one that hangs is
# terminated.
PREDECESSOR_SECONDS = 2


@dataclass(frozen=True, slots=True)
class SlotState:
    """Our slot on the primary; `holder` is the application that uses it now."""

    restart_lsn: int
    holder_pid: int | None
    holder: str


def read_slot(connection: psycopg.Connection, slot: str) -> SlotState | None:
    """Our slot, or None. Raises Refusal if the name belongs to a logical slot."""
    row = connection.execute(
        "SELECT s.slot_type, s.restart_lsn::text, s.active_pid, coalesce(r.application_name, '')"
        " FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid"
        " WHERE s.slot_name = %s",
        (slot,),
    ).fetchone()
    if row is None:
        return None
    kind, restart_lsn, pid, holder = row
    if kind != "physical":
        raise Refusal(f'replication slot "{slot}" is {kind}', hint="Choose another with --slot.")
    return SlotState(int(Lsn.parse(restart_lsn)) if restart_lsn else 0, pid, holder)


def end_predecessor(address: PrimaryAddress) -> None:
    """Terminate the connection of a proposer that holds the slot and does not release it, because
    it hangs or its machine is unreachable. We have won a term, so it can confirm nothing any more.
    Does not touch another program's connection. Raises WalProposerError."""
    with (
        closing(address.connect()) as connection,
        converting_errors("could not free the replication slot"),
    ):
        state = read_slot(connection, address.slot)
        if state is not None and state.holder_pid and state.holder == address.application_name:
            log.warning(
                "terminating a predecessor that hangs", slot=address.slot, pid=state.holder_pid
            )
            connection.execute("SELECT pg_terminate_backend(%s)", (state.holder_pid,))


def ensure_slot(connection: psycopg.Connection, address: PrimaryAddress) -> SlotState:
    """Our slot; created with its WAL reserved if it does not exist. Raises WalProposerError."""
    with converting_errors("could not create the replication slot"):
        state = read_slot(connection, address.slot)
        if state is None:
            connection.execute(
                "SELECT pg_create_physical_replication_slot(%s, true)", (address.slot,)
            )
            state = read_slot(connection, address.slot)
    if state is None:
        raise Unreachable(f'replication slot "{address.slot}" was dropped meanwhile')
    if state.holder_pid is not None and state.holder not in (address.application_name, ""):
        raise Refusal(
            f'replication slot "{address.slot}" is used by "{state.holder}" '
            f"(pid {state.holder_pid})",
            hint="Choose another slot with --slot, or stop that client.",
        )
    return state
