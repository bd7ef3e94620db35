"""Our replication slot on the primary: it holds the WAL that the safekeepers have not got yet.

It has one holder. A predecessor's connection may be ended for it, another program's never.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import psycopg
import structlog

from pgwal.lsn import Lsn
from walproposer.connection import refusing
from walproposer.errors import Refusal, Unreachable
from walproposer.primary.primary_address import PrimaryAddress

log = structlog.get_logger()

# A fenced predecessor lets go of the slot within moments; the connection of a frozen one is ended.
PREDECESSOR_SECONDS = 2


@dataclass(frozen=True, slots=True)
class SlotState:
    """Our slot on the primary; `holder` is the application that uses it now."""

    restart_lsn: int
    holder_pid: int | None
    holder: str


def read_slot(connection: psycopg.Connection, slot: str) -> SlotState | None:
    """Our slot, or None. Raises Refusal when the name belongs to a logical slot."""
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
    """Close the connection of a proposer that has the slot and does not let go of it: it hangs, or
    its machine is gone. Our term was won, so it could confirm nothing any more; another program's
    connection is left alone. Raises WalProposerError."""
    with closing(address.connect()) as connection, refusing("could not free the replication slot"):
        state = read_slot(connection, address.slot)
        if state is not None and state.holder_pid and state.holder == address.application_name:
            log.warning("ending a predecessor that hangs", slot=address.slot, pid=state.holder_pid)
            connection.execute("SELECT pg_terminate_backend(%s)", (state.holder_pid,))


def ensure_slot(connection: psycopg.Connection, address: PrimaryAddress) -> SlotState:
    """Our slot, created with its WAL reserved when it is not there. Raises WalProposerError."""
    with refusing("could not create the replication slot"):
        state = read_slot(connection, address.slot)
        if state is None:
            connection.execute(
                "SELECT pg_create_physical_replication_slot(%s, true)", (address.slot,)
            )
            state = read_slot(connection, address.slot)
    if state is None:
        raise Unreachable(f'replication slot "{address.slot}" vanished')
    if state.holder_pid is not None and state.holder not in (address.application_name, ""):
        raise Refusal(
            f'replication slot "{address.slot}" is used by "{state.holder}" '
            f"(pid {state.holder_pid})",
            hint="Choose another slot with --slot, or stop that client.",
        )
    return state
