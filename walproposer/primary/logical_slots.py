"""The logical slots of qsync on the primary, one per database: `sk_qsync_` and the database's oid.

A coordinator streams from them (`walproposer/qsync/limbo_stream.py`). A slot that no coordinator
uses holds WAL and the catalog's horizon, and exists until it is dropped.
"""

from __future__ import annotations

import psycopg

SLOT_PREFIX = "sk_qsync_"
SLOT_PATTERN = f"^{SLOT_PREFIX}[0-9]+$"

_DROP = (
    "SELECT slot_name::text, pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    " WHERE slot_type = 'logical' AND slot_name ~ %s AND active_pid IS NULL ORDER BY 1"
)


def drop_logical_slots(connection: psycopg.Connection) -> list[str]:
    """Drop those of all databases, except those in use. Returns their names. Raises
    psycopg.Error."""
    return [name for name, _ in connection.execute(_DROP, (SLOT_PATTERN,)).fetchall()]
