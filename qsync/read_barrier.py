"""A read that sees all that was committed: first the position, then the proof. Pure.

    flush position of the primary     1 round trip
    BARRIER of it                     1 to the coordinator, and 1 of a quorum

The order is the law: the coordinator proves, after the position was read, that its primary still
leads. A deposed primary's coordinator can not.
"""

from __future__ import annotations

from qsync.conversation import check_idle
from qsync.coordinator_client import ANSWER_SECONDS, CoordinatorClient
from qsync.statements import FLUSH_LSN, Result, parse_lsn
from qsync.steps import AnyConnection, Ask, Steps


def read_barrier(
    coordinator: CoordinatorClient, connection: AnyConnection, deadline: float
) -> Steps[int]:
    """The commit_lsn. Raises BarrierFailed, UsageError, psycopg.Error."""
    check_idle(connection)
    results: list[Result] = yield Ask(connection, (FLUSH_LSN,), deadline + ANSWER_SECONDS)
    return (yield from coordinator.barrier(parse_lsn(results[0].value), deadline))
