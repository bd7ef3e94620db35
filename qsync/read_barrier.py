"""A read that sees all committed data: it reads the position, then asks for the proof. Pure.

    flush position of the primary     1 round trip
    BARRIER of that position          1 to the coordinator, and 1 of a quorum

The order is the law: a quorum answers the coordinator after the position was read, which proves
that the coordinator's primary still leads. The timeline distinguishes a deposed primary from its
successor.
"""

from __future__ import annotations

from quorum_wal.qsync.coordinator_client import CoordinatorClient
from quorum_wal.qsync.coordinator_connections import ANSWER_SECONDS
from quorum_wal.qsync.statements import PLACE, parse_epoch_us, parse_lsn
from quorum_wal.qsync.steps import AnyConnection, Ask, Steps


def read_barrier(
    coordinator: CoordinatorClient, connection: AnyConnection, deadline: float
) -> Steps[int]:
    """Returns the commit_lsn. The connection must be idle. Raises BarrierFailed, psycopg.Error."""
    (place,) = yield Ask(connection, (PLACE,), deadline + ANSWER_SECONDS)
    if place.error is not None:
        raise place.error
    lsn, wal_file, start_epoch = place.row
    server = int(wal_file[:8], 16), parse_epoch_us(start_epoch)
    return (yield from coordinator.barrier(parse_lsn(lsn), *server, deadline))
