"""Parses rows of the catalogs that determine the files of a table, from the bytes of their tuples.

    pg_class       oid | relname[64] | namespace | .. | 88: file number | .. | toast | .. | kind
                                  up to 17:   108: toast   115: kind
                                  since 18:   112: toast   119: kind     (relallfrozen at 108)
    pg_database, pg_namespace     oid | name[64]
    pg_inherits                   child | parent
    pg_index                      index | table
    pg_authid                     oid | rolname[64] | 68: superuser | .. | 72: may log in

All of these columns have a fixed width and are never null. A name is bytes in the encoding of its
database. Pure. Source: Postgres `catalog/pg_class.h` and the other catalog headers, 13 to 18.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from quorum_wal.pageserver.errors import LayerDamaged

PG_CLASS, PG_NAMESPACE, PG_INHERITS, PG_INDEX = 1259, 2615, 2611, 2610
PG_DATABASE, PG_AUTHID = 1262, 1260
#: The heap of large objects and its index: a catalog by its oid, but user data by its size.
LARGE_OBJECTS = frozenset({2613, 2683})
#: FirstNormalObjectId. All catalogs have smaller oids, even if their file numbers are greater.
FIRST_NORMAL_OID = 16384
TEMPORARY_HEAP = b"pg_temp_%d"

_NAMED = struct.Struct("<I64s")
_PAIR = struct.Struct("<II")
_CLASS = struct.Struct("<I64sI16xI")
_OID = struct.Struct("<I")
_SUPERUSER_AT, _LOGIN_AT = 68, 72


@dataclass(frozen=True, slots=True)
class ClassRow:
    """A row version of pg_class. `number` is 0 if it has no file, or is in the relation map."""

    oid: int
    name: bytes
    namespace: int
    number: int
    toast: int
    kind: bytes


@dataclass(frozen=True, slots=True)
class NamedRow:
    """A row version of pg_database or pg_namespace."""

    oid: int
    name: bytes


@dataclass(frozen=True, slots=True)
class RoleRow:
    """A row version of pg_authid."""

    oid: int
    name: bytes
    is_superuser: bool
    may_log_in: bool


def parse_class_row(row: bytes, pg_major: int) -> ClassRow:
    """Raises LayerDamaged."""
    toast_at, kind_at = (112, 119) if pg_major >= 18 else (108, 115)
    _check(row, kind_at + 1, "pg_class")
    oid, name, namespace, number = _CLASS.unpack_from(row)
    (toast,) = _OID.unpack_from(row, toast_at)
    return ClassRow(oid, _name(name), namespace, number, toast, row[kind_at : kind_at + 1])


def parse_named_row(row: bytes) -> NamedRow:
    """Raises LayerDamaged."""
    _check(row, _NAMED.size, "a catalog of names")
    oid, name = _NAMED.unpack_from(row)
    return NamedRow(oid, _name(name))


def parse_pair_row(row: bytes) -> tuple[int, int]:
    """The first two oids. Raises LayerDamaged."""
    _check(row, _PAIR.size, "a catalog of pairs")
    first, second = _PAIR.unpack_from(row)
    return first, second


def parse_role_row(row: bytes) -> RoleRow:
    """Raises LayerDamaged."""
    _check(row, _LOGIN_AT + 1, "pg_authid")
    oid, name = _NAMED.unpack_from(row)
    return RoleRow(oid, _name(name), row[_SUPERUSER_AT] != 0, row[_LOGIN_AT] != 0)


def _check(row: bytes, size: int, catalog: str) -> None:
    if len(row) < size:
        raise LayerDamaged(f"expected {size} or more bytes in a row of {catalog}, found {len(row)}")


def _name(field: bytes) -> bytes:
    return field.partition(b"\0")[0]
