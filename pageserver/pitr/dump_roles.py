"""The roles that a dump names: owners of its objects, and grantees of privileges on them.

    pg_shdepend: deptype 'o' the owner, 'a' a role in an ACL, without the owner

pg_shdepend has no row for the bootstrap superuser, which is pinned (catalog/dependency.h). So the
owners of relations, functions, types and schemas are also read from their own catalogs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

from quorum_wal.pageserver.pitr.catalog_rows import FIRST_NORMAL_OID

_OF_TABLES = """
WITH wanted AS (
    SELECT unnest(%(family)s::oid[]) AS oid
    UNION SELECT objid FROM pg_depend WHERE classid = 'pg_class'::regclass
        AND refclassid = 'pg_class'::regclass AND refobjid = ANY(%(family)s)
        AND deptype IN ('a', 'i')
)
SELECT 'o', pg_get_userbyid(relowner) FROM pg_class WHERE oid IN (SELECT oid FROM wanted)
UNION
SELECT deptype::text, pg_get_userbyid(refobjid) FROM pg_shdepend
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND refclassid = 'pg_authid'::regclass AND deptype = 'a'
    AND classid = 'pg_class'::regclass AND objid IN (SELECT oid FROM wanted)
"""
_OF_DATABASE = """
SELECT 'o', pg_get_userbyid(owner) FROM (
    SELECT oid, relowner AS owner FROM pg_class UNION ALL SELECT oid, proowner FROM pg_proc
    UNION ALL SELECT oid, typowner FROM pg_type UNION ALL SELECT oid, nspowner FROM pg_namespace
) found WHERE oid >= %(normal)s
UNION
SELECT deptype::text, pg_get_userbyid(refobjid) FROM pg_shdepend
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND refclassid = 'pg_authid'::regclass AND deptype IN ('o', 'a')
"""


@dataclass(frozen=True, slots=True)
class DumpRoles:
    """Names of roles, sorted."""

    owners: tuple[str, ...]
    grantees: tuple[str, ...]


def read_dump_roles(connection: psycopg.Connection, family: Sequence[int] | None) -> DumpRoles:
    """The roles in a dump of these tables with their sequences; None: of the database. Raises
    psycopg.Error."""
    parameters = {"family": [*(family or ())], "normal": FIRST_NORMAL_OID}
    query = _OF_DATABASE if family is None else _OF_TABLES
    rows = connection.execute(query, parameters).fetchall()

    def of(kind: str) -> tuple[str, ...]:
        return tuple(sorted(name for found, name in rows if found == kind))

    return DumpRoles(of("o"), of("a"))
