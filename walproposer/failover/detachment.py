"""What `sk detach` does about qsync and failovers: it lists the limbo, drops the logical slots,
which would hold WAL for no reader, and lets clients write again after an interrupted failover."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import psycopg

from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.failover.client_writes import is_closed, open_again
from quorum_wal.walproposer.primary.logical_slots import drop_logical_slots
from quorum_wal.walproposer.primary.prepared_transactions import ours, read_prepared
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress


def leave(address: PrimaryAddress, *, drop_slot: bool) -> Iterator[str]:
    """Yields a line for each thing done and each thing left. Raises WalProposerError."""

    @contextmanager
    def new_session() -> Iterator[psycopg.Connection[Any]]:
        with closing(address.connect()) as connection, converting_errors("could not detach"):
            yield connection

    with new_session() as connection:
        limbo = ours(read_prepared(connection))
        closed = is_closed(connection)
        if drop_slot:
            slots = drop_logical_slots(connection)
            yield from (f'replication slot "{name}" was dropped' for name in slots)
    if closed:
        open_again(new_session)
        yield "clients can write again: an interrupted failover had left the server read-only"
    if limbo:
        count = f"{len(limbo)} transaction{'s' if len(limbo) > 1 else ''}"
        yield (
            f"{count} of qsync stay prepared, not visible, with their locks, until sk attach "
            "--qsync finishes them, or you do, with COMMIT PREPARED in their database:"
        )
        yield from (f"    {each}" for each in limbo)
