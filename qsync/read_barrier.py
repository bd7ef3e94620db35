"""A read that sees all that was committed: first the position, then the proof. Pure.

    flush position of the primary     1 round trip
    BARRIER of it                     1 to the coordinator, and 1 of a quorum

The order is the law: the coordinator proves, after the position was read, that its primary still
leads: a quorum has answered it since. The timeline tells a deposed primary from its successor.
"""

from __future__ import annotations

from qsync.coordinator_client import CoordinatorClient
from qsync.coordinator_connections import ANSWER_SECONDS
from qsync.statements import PLACE, parse_epoch_us, parse_lsn
from qsync.steps import AnyConnection, Ask, Steps


def read_barrier(
    coordinator: CoordinatorClient, connection: AnyConnection, deadline: float
) -> Steps[int]:
    """The commit_lsn; on an idle connection. Raises BarrierFailed, psycopg.Error."""
    (place,) = yield Ask(connection, (PLACE,), deadline + ANSWER_SECONDS)
    if place.error is not None:
        raise place.error
    lsn, wal_file, start_epoch = place.row
    server = int(wal_file[:8], 16), parse_epoch_us(start_epoch)
    return (yield from coordinator.barrier(parse_lsn(lsn), *server, deadline))
