"""The client of qsync: transactions that are committed when the quorum has them.

    q = Qsync("proposer:5455", timeout=5)          # AsyncQsync for asyncio
    with q.transaction(pool) as tx:                # a pool of psycopg's, or a connection
        tx.execute("UPDATE accounts SET ...")
    tx.result                                      # Committed(lsn)

client, async_client             Qsync, AsyncQsync
transaction, async_transaction   the block
two_phase                        the protocol, from BEGIN to the outcome; pure
failed_prepare                   what is told when it fails by PREPARE; pure
read_barrier                     that of a read which sees all that was committed; pure
coordinator_client               the verbs of the coordinator's port; pure
coordinator_hosts                where coordinators are; pure
steps                            what these protocols ask their drivers to do
blocking_driver, asyncio_driver  who does it
conversation                     questions to a server, for both
statements                       the SQL; pure
gid                              the name of a prepared transaction; pure
outcome                          what can become of a transaction; pure
options, errors

It needs psycopg and psycopg-pool, and nothing else of this project.
"""

from __future__ import annotations

from qsync.async_client import AsyncQsync
from qsync.async_transaction import AsyncHandle, AsyncTransaction
from qsync.client import Qsync
from qsync.errors import (
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
from qsync.gid import Gid, GidError
from qsync.outcome import Committed, Pending, Refused, RolledBack
from qsync.transaction import Handle, Transaction

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
