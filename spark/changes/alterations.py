"""`Alterations`: which tables were altered behind their catalog, as commit records tell.

    COMMIT    ... | number of messages 4 | messages 16 each | ...
    message   | kind 1: -2 a relation; 0 and above a row of a catalog | 3 | database 4 |
              | the relation's oid, or the hash of the row's key 4 | 4 |

Who alters a column writes its row of pg_attribute: the commit then has a message of the cache
ATTNUM with the hash of (relation, number), and one for the relation. ANALYZE, VACUUM, a new index
or a new column leave no such pair. An enum label that is renamed leaves the hash of its oid. Law: a
row of a table that was altered is never shown as if it had not been. Source: Postgres `sinval.h`,
`syscache.h`, CatalogCacheComputeHashValue in `catcache.c`, `hashfn.h`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pgwal.lsn import format_lsn
from spark.changes.catalog import ENUM, Catalog, Table
from spark.changes.heap_scan import INVALIDATIONS, INVALIDATIONS_AT, MARK_LSN, HeapScan
from walrecords.record_index import Array

_MESSAGE = np.dtype(
    {
        "names": ["kind", "database", "value"],
        "formats": ["i1", "<u4", "<u4"],
        "offsets": [0, 4, 8],
        "itemsize": 16,
    }
)
_RELATION = -2
#: of all versions from 13 to 18; the key of pg_statistic has the same hash
_ATTNUM = 7
_HASH_MAX = np.uint32(0xFFFFFFFF)


@dataclass(slots=True)
class Alterations:
    """Of one catalog's database, found in the WAL from where that was taken to `until_lsn`."""

    until_lsn: int
    #: a table's oid, or an enum's: where the transactions commit that altered it
    commits: dict[int, list[int]] = field(default_factory=dict)
    #: WAL that could not be looked at, [from, to)
    unseen: list[tuple[int, int]] = field(default_factory=list)

    def joined(self, later: Alterations) -> Alterations:
        oids = self.commits.keys() | later.commits.keys()
        commits = {oid: self.commits.get(oid, []) + later.commits.get(oid, []) for oid in oids}
        return Alterations(later.until_lsn, commits, self.unseen + later.unseen)

    def add(self, scan: HeapScan, keys: CatalogKeys) -> None:
        """What a piece of the WAL tells, which is behind all that was added."""
        telling = scan.marks[:, scan.marks[INVALIDATIONS] > 0]
        for lsn, at, count in telling[[MARK_LSN, INVALIDATIONS_AT, INVALIDATIONS]].T.tolist():
            messages = scan.index.data[at : at + _MESSAGE.itemsize * count].view(_MESSAGE)
            for oid in keys.altered(messages):
                self.commits.setdefault(oid, []).append(lsn)

    def altered(self, catalog: Catalog) -> dict[int, int]:
        """Tables, by their number, of which the catalog may not be true any more, and the commit
        from which on."""
        found = {}
        for number, table in enumerate(catalog.tables) if self.commits else ():
            taken_lsn, oids = catalog.taken_lsn(table), {table.oid, *catalog.enum_oids(table)}
            lsns = (lsn for oid in oids & self.commits.keys() for lsn in self.commits[oid])
            lsn = min((lsn for lsn in lsns if lsn >= taken_lsn), default=None)
            if lsn is not None:
                found[number] = lsn
        return found


class CatalogKeys:
    """The hashes by which messages name the columns and the enum labels of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._database_oid = catalog.database_oid
        hashes, oids, is_relation = [], [], []
        for table in catalog.tables:
            numbers = np.arange(1, len(table.columns) + 1, dtype=np.uint32)
            hashes.append(_hash(np.array([table.oid], np.uint32)) ^ _rotated(_hash(numbers)))
            oids.append(np.full(len(numbers), table.oid, np.int64))
            is_relation.append(np.ones(len(numbers), np.bool_))
        for each in catalog.types.values():
            labels = np.array(list(each.labels) if each.kind == ENUM else [], np.uint32)
            hashes.append(_hash(labels))
            oids.append(np.full(len(labels), each.oid, np.int64))
            is_relation.append(np.zeros(len(labels), np.bool_))
        self._hashes = np.concatenate([np.empty(0, np.uint32), *hashes])
        self._oids = np.concatenate([np.empty(0, np.int64), *oids])
        self._is_relation = np.concatenate([np.empty(0, np.bool_), *is_relation])
        self._sorted = np.append(np.sort(self._hashes), _HASH_MAX)

    def altered(self, messages: Array) -> list[int]:
        """Oids of tables and enums that these messages, of one commit, are about."""
        mine = messages[messages["database"] == self._database_oid]
        kind, value = mine["kind"], mine["value"]
        if not (self._sorted[np.searchsorted(self._sorted, value)] == value).any():
            return []  # as in most commits that have messages
        is_told = np.isin(self._hashes, value[kind >= 0]) & ~self._is_relation
        is_told |= (
            np.isin(self._hashes, value[kind == _ATTNUM])
            & np.isin(self._oids, value[kind == _RELATION])
            & self._is_relation
        )
        found: list[int] = np.unique(self._oids[is_told]).tolist()
        return found


def alteration_note(table: Table, lsn: int, catalog: Catalog) -> str:
    return (
        f"table {table} was altered at {format_lsn(lsn)}, behind its catalog, which was taken at "
        f"{format_lsn(catalog.taken_lsn(table))}: take the catalog anew"
    )


def unseen_note(lsn: int, end_lsn: int) -> str:
    return (
        f"the WAL from {format_lsn(lsn)} to {format_lsn(end_lsn)}, behind the catalog, was not "
        "looked at: tables that were altered in it are shown as they were before"
    )


def _hash(numbers: Array) -> Array:
    """murmurhash32"""
    hashes = numbers.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ hashes >> np.uint32(shift)) * np.uint32(factor)
    rounded: Array = hashes ^ hashes >> np.uint32(16)
    return rounded


def _rotated(hashes: Array) -> Array:
    """As a second key's hash is joined with the first one's."""
    rotated: Array = hashes << np.uint32(8) | hashes >> np.uint32(24)
    return rotated
