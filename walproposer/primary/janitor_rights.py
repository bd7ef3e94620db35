"""What the role of a proposer may do with prepared transactions: Postgres lets only their owner or
a superuser finish them, from a session of the same database (`twophase.c`, LockGXact)."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress

# Owners that it cannot SET ROLE to; databases that it cannot connect to.
_RIGHTS = """
SELECT rolname, rolsuper,
    ARRAY(SELECT rolname::text FROM pg_roles WHERE rolcanlogin AND (rolsuper AND NOT me.rolsuper
        OR NOT pg_has_role(me.oid, oid, 'MEMBER')) ORDER BY 1),
    ARRAY(SELECT datname::text FROM pg_database WHERE datallowconn
        AND NOT has_database_privilege(me.oid, oid, 'CONNECT') ORDER BY 1),
    ARRAY(SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate ORDER BY 1)
FROM pg_roles me WHERE rolname = current_user
"""


@dataclass(frozen=True, slots=True)
class JanitorRights:
    """`foreign_owners`: roles with LOGIN whose transactions it cannot finish. `closed`: databases
    that it may not connect to, of all those in which clients can prepare transactions."""

    role: str
    is_superuser: bool
    foreign_owners: tuple[str, ...]
    closed: tuple[str, ...]
    databases: tuple[str, ...]


def read_janitor_rights(address: PrimaryAddress) -> JanitorRights:
    """Raises WalProposerError."""
    with (
        closing(address.connect()) as connection,
        converting_errors("could not read the role's rights"),
    ):
        row = connection.execute(_RIGHTS).fetchone()
    assert row is not None
    role, is_superuser, owners, closed, databases = row
    return JanitorRights(role, is_superuser, tuple(owners), tuple(closed), tuple(databases))
