"""The client of qsync: transactions that commit when a quorum has them.

    q = Qsync("proposer:5455", timeout=5)          # AsyncQsync for asyncio
    with q.transaction(pool) as tx:                # a psycopg pool, or a connection
        tx.execute("UPDATE accounts SET ...")
    tx.result                                      # Committed(lsn)

client, async_client             Qsync, AsyncQsync
transaction, async_transaction   the block
two_phase                        the protocol, from BEGIN to the outcome; pure
failed_prepare                   the errors of a transaction that was not prepared; pure
read_barrier                     the protocol of a read that sees all committed data; pure
coordinator_client               the commands of the coordinator's port; pure
coordinator_hosts                the addresses of coordinators; pure
steps                            the requests of these protocols to their drivers
blocking_driver, asyncio_driver  the drivers
conversation                     sends statements to a server and reads the results, for both
statements                       the SQL; pure
gid                              the name of a prepared transaction; pure
outcome                          the possible outcomes of a transaction; pure
options, errors

It needs psycopg and psycopg-pool, and no other package of this project.
"""

from __future__ import annotations

from quorum_wal.qsync.async_client import AsyncQsync
from quorum_wal.qsync.async_transaction import AsyncHandle, AsyncTransaction
from quorum_wal.qsync.client import Qsync
from quorum_wal.qsync.errors import (
    BarrierFailed,
    CoordinatorError,
    NotCommitted,
    OutcomeUnknown,
    QsyncError,
    TransactionPending,
    TransactionRefused,
    TransactionRolledBack,
    UsageError,
)
from quorum_wal.qsync.gid import Gid, GidError
from quorum_wal.qsync.outcome import Committed, Pending, Refused, RolledBack
from quorum_wal.qsync.transaction import Handle, Transaction

__all__ = [
    "Qsync",
    "Transaction",
    "Handle",
    "AsyncQsync",
    "AsyncTransaction",
    "AsyncHandle",
    "Committed",
    "RolledBack",
    "Pending",
    "Refused",
    "QsyncError",
    "NotCommitted",
    "TransactionRolledBack",
    "TransactionPending",
    "TransactionRefused",
    "BarrierFailed",
    "OutcomeUnknown",
    "CoordinatorError",
    "UsageError",
    "Gid",
    "GidError",
]
