"""The tables, equal in both databases.

    nodes        node_id -> the greatest node generation, and its process
    tenants      tenant -> the greatest attachment generation
    attachments  (tenant, node_id) -> generation, mode; at most one of a tenant is not stale, and
                 it has the tenant's greatest generation
    timelines    (tenant, timeline) -> created, deleted
    changes      the last CHANGES_MAX changes

Law: rows of nodes, tenants and timelines are never deleted, and their numbers never decrease.
"""

from __future__ import annotations

from quorum_wal.generations.errors import GenerationDatabaseError
from quorum_wal.generations.store import Transaction

FORMAT_VERSION = 1
#: One line for each start of a pageserver and each move: enough for years.
CHANGES_MAX = 10_000

TABLES = (
    "CREATE TABLE format (version BIGINT NOT NULL)",
    """CREATE TABLE nodes (
        node_id BIGINT PRIMARY KEY CHECK (node_id BETWEEN 0 AND 65535),
        node_generation BIGINT NOT NULL CHECK (node_generation BETWEEN 0 AND 16777215),
        incarnation TEXT NOT NULL,
        registered_at TEXT NOT NULL)""",
    """CREATE TABLE tenants (
        tenant TEXT PRIMARY KEY,
        attachment_generation BIGINT NOT NULL
            CHECK (attachment_generation BETWEEN 0 AND 16777215))""",
    """CREATE TABLE attachments (
        tenant TEXT NOT NULL REFERENCES tenants,
        node_id BIGINT NOT NULL CHECK (node_id BETWEEN 0 AND 65535),
        attachment_generation BIGINT NOT NULL,
        mode TEXT NOT NULL CHECK (mode IN ('single', 'multi', 'stale')),
        PRIMARY KEY (tenant, node_id))""",
    "CREATE INDEX attachments_of_node ON attachments (node_id)",
    "CREATE UNIQUE INDEX attachments_current ON attachments (tenant) WHERE mode <> 'stale'",
    """CREATE TABLE timelines (
        tenant TEXT NOT NULL REFERENCES tenants,
        timeline TEXT NOT NULL,
        state TEXT NOT NULL CHECK (state IN ('created', 'deleted')),
        PRIMARY KEY (tenant, timeline))""",
    """CREATE TABLE changes (
        number BIGINT PRIMARY KEY,
        changed_at TEXT NOT NULL,
        operation TEXT NOT NULL,
        tenant TEXT NOT NULL,
        node_id BIGINT,
        generation BIGINT)""",
)


def create_tables(transaction: Transaction) -> None:
    """The database must not have any of them."""
    for statement in TABLES:
        transaction.rows(statement)
    transaction.rows("INSERT INTO format (version) VALUES (?)", FORMAT_VERSION)


def check_format(transaction: Transaction, name: str) -> None:
    """Raises GenerationDatabaseError."""
    versions = [row[0] for row in transaction.rows("SELECT version FROM format")]
    if versions != [FORMAT_VERSION]:
        raise GenerationDatabaseError(
            f'database "{name}" has format {versions}, expected [{FORMAT_VERSION}]',
            hint="Use the version of sk that wrote it, or a newer one.",
        )
