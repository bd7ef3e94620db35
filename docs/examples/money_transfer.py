"""Money that is neither lost nor made: transfers by qsync that survive whatever happens.

    python docs/examples/money_transfer.py COORDINATOR DSN [TRANSFERS]
    python docs/examples/money_transfer.py proposer:5455 "host=primary dbname=bank" 100

COORDINATOR is where `sk attach --qsync` listens, several with commas; DSN is the primary's, as
libpq takes it: with several hosts and target_session_attrs=read-write it finds the new one after
a failover.

A transfer is tried until it is known to be done, and is never done twice:

    TransactionRefused      nothing happened           try again later
    TransactionRolledBack   it never will be           try again
    psycopg.Error           in the block, before the commit was asked for: try again
                            (25006: the server is a new primary, and not open to clients yet)
    TransactionPending      undecided                  ask for its outcome until it is decided
    OutcomeUnknown          the server has no record   look for the transfer's own row

The key of a transfer is made before the first try. A program that was killed and begins again
looks for the row with this key in `transfer`.
"""

from __future__ import annotations

import random
import sys
import time
import uuid
from collections.abc import Iterator

import psycopg
from psycopg_pool import ConnectionPool

from quorum_wal import qsync

SCHEMA = """
CREATE TABLE IF NOT EXISTS account (name text PRIMARY KEY, amount int NOT NULL CHECK (amount >= 0));
CREATE TABLE IF NOT EXISTS transfer
    (id uuid PRIMARY KEY, source text NOT NULL, target text NOT NULL, amount int NOT NULL);
"""
ACCOUNTS, EACH = 10, 1000
GIVE_UP_SECONDS = 120.0


#: Errors in the block after which another try may succeed.
TRY_AGAIN = (psycopg.OperationalError, psycopg.errors.ReadOnlySqlTransaction)


class TooPoor(Exception):
    """The source has not enough."""


def transfer(
    q: qsync.Qsync,
    pool: ConnectionPool,
    key: uuid.UUID,
    source: str,
    target: str,
    amount: int,
) -> None:
    """On return it is done, once, for good. May be called again with the same key.

    Raises TooPoor, and TimeoutError when it could not be done in time.
    """
    for _ in tries():
        try:
            with q.transaction(pool) as tx:
                move(tx, key, source, target, amount)
            return
        except qsync.TransactionPending as pending:
            if is_committed(q, pool, key, pending):
                return
        except (qsync.TransactionRefused, qsync.TransactionRolledBack, *TRY_AGAIN):
            continue  # it has not happened
    raise TimeoutError(f"transfer {key} could not be done in {GIVE_UP_SECONDS:g} s")


def move(tx: qsync.Transaction, key: uuid.UUID, source: str, target: str, amount: int) -> None:
    """The transaction itself: plain SQL. Raises TooPoor, psycopg.Error."""
    tx.execute("SET LOCAL lock_timeout = '2s'")  # others may be pending on the same rows
    done = tx.execute(
        "INSERT INTO transfer VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
        (key, source, target, amount),
    )
    if done.rowcount == 0:
        return  # by an earlier try
    # In one order for all, or two transfers could wait for each other.
    for name, change in sorted([(source, -amount), (target, amount)]):
        try:
            tx.execute("UPDATE account SET amount = amount + %s WHERE name = %s", (change, name))
        except psycopg.errors.CheckViolation as error:
            raise TooPoor(source) from error


def is_committed(
    q: qsync.Qsync, pool: ConnectionPool, key: uuid.UUID, pending: qsync.TransactionPending
) -> bool:
    """Wait until it is decided. Raises TimeoutError."""
    for _ in tries():
        try:
            outcome = q.outcome(pending)
        except qsync.CoordinatorError:
            continue  # none of them leads at present
        except qsync.OutcomeUnknown:
            return is_recorded(q, pool, key)
        if not isinstance(outcome, qsync.Pending):
            return isinstance(outcome, qsync.Committed)
    raise TimeoutError(f"transfer {key} is pending: {pending.outcome.gid}")


def is_recorded(q: qsync.Qsync, pool: ConnectionPool, key: uuid.UUID) -> bool:
    """What the primary that leads now has. Raises TimeoutError."""
    for _ in tries():
        try:
            with pool.connection() as connection:
                q.barrier(connection)
                return bool(
                    connection.execute("SELECT 1 FROM transfer WHERE id = %s", (key,)).fetchone()
                )
        except (qsync.BarrierFailed, psycopg.OperationalError):
            continue
    raise TimeoutError(f"transfer {key} could not be looked for")


def tries() -> Iterator[None]:
    """With growing pauses between them, for GIVE_UP_SECONDS."""
    deadline, pause = time.monotonic() + GIVE_UP_SECONDS, 0.05
    while time.monotonic() < deadline:
        yield
        time.sleep(pause)
        pause = min(2 * pause, 1.0)


def main(coordinator: str, dsn: str, transfers: int = 100) -> None:
    """Make the accounts, move money about, and count it."""
    chance = random.Random()
    pool = ConnectionPool(dsn, check=ConnectionPool.check_connection, open=True)
    with pool, qsync.Qsync(coordinator) as q:
        with pool.connection() as connection:
            connection.execute(SCHEMA)
        with q.transaction(pool) as tx:
            for number in range(ACCOUNTS):
                tx.execute(
                    "INSERT INTO account VALUES (%s, %s) ON CONFLICT DO NOTHING",
                    (f"account-{number}", EACH),
                )
        refused = 0
        for _ in range(transfers):
            source, target = chance.sample(range(ACCOUNTS), 2)
            try:
                transfer(
                    q,
                    pool,
                    uuid.uuid4(),
                    f"account-{source}",
                    f"account-{target}",
                    chance.randint(1, EACH // 4),
                )
            except TooPoor:
                refused += 1
        with pool.connection() as connection:
            q.barrier(connection)
            counted = "SELECT (SELECT count(*) FROM transfer), (SELECT sum(amount) FROM account)"
            ((done, total),) = connection.execute(counted).fetchall()
    print(f"transfers done: {done}, refused: {refused}; money: {total} of {ACCOUNTS * EACH}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
