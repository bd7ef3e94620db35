"""`Alterations`: the tables altered after their catalog snapshot, found from commit records.

    COMMIT    ... | number of messages 4 | messages 16 each | ...
    message   | kind 1: -2 a relation; 0 and above a row of a catalog | 3 | database 4 |
              | the relation's oid, or the hash of the row's key 4 | 4 |

ALTER of a column writes its row of pg_attribute. The commit then has a message of the cache ATTNUM
with the hash of (relation, number), and one for the relation. ANALYZE, VACUUM, a new index or a new
column do not cause such a pair. ALTER TYPE of an attribute of a composite type causes one for the
type's relation. Renaming an enum label causes a message with the hash of its oid.
Law: a row of an altered table is never shown without a note. Source: Postgres `sinval.h`,
`syscache.h`, CatalogCacheComputeHashValue in `catcache.c`, `hashfn.h`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import ENUM, Catalog, Table
from quorum_wal.spark.changes.heap_fields import INVALIDATIONS, INVALIDATIONS_AT, MARK_LSN
from quorum_wal.spark.changes.heap_scan import HeapScan
from quorum_wal.walrecords.record_index import Array

_MESSAGE = np.dtype(
    {
        "names": ["kind", "database", "value"],
        "formats": ["i1", "<u4", "<u4"],
        "offsets": [0, 4, 8],
        "itemsize": 16,
    }
)
_RELATION = -2
#: in all versions from 13 to 18; the key of pg_statistic has the same hash
_ATTNUM = 7
_HASH_MAX = np.uint32(0xFFFFFFFF)


@dataclass(slots=True)
class Alterations:
    """The alterations in one catalog's database, from the catalog's LSN to `until_lsn`."""

    until_lsn: int
    #: oid of a table, an enum or a composite type's relation: the commit LSNs of the transactions
    #: that altered it
    commits: dict[int, list[int]] = field(default_factory=dict)
    #: WAL that could not be searched, [from, to)
    unseen: list[tuple[int, int]] = field(default_factory=list)

    def joined(self, later: Alterations) -> Alterations:
        oids = self.commits.keys() | later.commits.keys()
        commits = {oid: self.commits.get(oid, []) + later.commits.get(oid, []) for oid in oids}
        return Alterations(later.until_lsn, commits, self.unseen + later.unseen)

    def add(self, scan: HeapScan, keys: CatalogKeys) -> None:
        """Adds a piece of the WAL, which must follow all that was added before."""
        with_messages = scan.marks[:, scan.marks[INVALIDATIONS] > 0]
        fields = [MARK_LSN, INVALIDATIONS_AT, INVALIDATIONS]
        for lsn, at, count in with_messages[fields].T.tolist():
            messages = scan.index.data[at : at + _MESSAGE.itemsize * count].view(_MESSAGE)
            for oid in keys.altered(messages):
                self.commits.setdefault(oid, []).append(lsn)

    def altered(self, catalog: Catalog) -> dict[int, int]:
        """The tables, by number, for which the catalog may be wrong, and the first commit LSN from
        which it may be."""
        found = {}
        for number, table in enumerate(catalog.tables) if self.commits else ():
            taken_lsn, oids = catalog.taken_lsn(table), {table.oid, *catalog.type_oids(table)}
            lsns = (lsn for oid in oids & self.commits.keys() for lsn in self.commits[oid])
            lsn = min((lsn for lsn in lsns if lsn >= taken_lsn), default=None)
            if lsn is not None:
                found[number] = lsn
        return found


class CatalogKeys:
    """The hashes that identify the columns, attributes and enum labels of a catalog in messages."""

    def __init__(self, catalog: Catalog) -> None:
        self._database_oid = catalog.database_oid
        columns = {
            each.relation_oid: len(each.attributes)
            for each in catalog.types.values()
            if each.relation_oid
        }
        columns |= {table.oid: len(table.columns) for table in catalog.tables}
        enums = [each for each in catalog.types.values() if each.kind == ENUM]
        counts = np.array(list(columns.values()), np.int64)
        labels = [np.array(list(each.labels), np.uint32) for each in enums]
        oids = np.repeat(np.array(list(columns), np.int64), counts)
        of_enums = np.repeat(np.array([each.oid for each in enums], np.int64), _lengths(labels))
        self._oids = np.concatenate([oids, of_enums])
        self._hashes = np.concatenate([
            _hash(oids) ^ _rotated(_hash(_numbers(counts))),
            _hash(np.concatenate([np.empty(0, np.uint32), *labels])),
        ])  # fmt: skip
        self._is_relation = np.arange(len(self._oids)) < len(oids)
        self._sorted = np.append(np.sort(self._hashes), _HASH_MAX)

    def altered(self, messages: Array) -> list[int]:
        """The oids of the relations and enums that these messages of one commit are about."""
        mine = messages[messages["database"] == self._database_oid]
        kind, value = mine["kind"], mine["value"]
        if not (self._sorted[np.searchsorted(self._sorted, value)] == value).any():
            return []  # the case of most commits that have messages
        is_altered = np.isin(self._hashes, value[kind >= 0]) & ~self._is_relation
        is_altered |= (
            np.isin(self._hashes, value[kind == _ATTNUM])
            & np.isin(self._oids, value[kind == _RELATION])
            & self._is_relation
        )
        found: list[int] = np.unique(self._oids[is_altered]).tolist()
        return found


def alteration_note(table: Table, lsn: int, catalog: Catalog) -> str:
    return (
        f"table {table} was altered at {format_lsn(lsn)}, after its catalog, which was taken at "
        f"{format_lsn(catalog.taken_lsn(table))}: take a new catalog"
    )


def unseen_note(lsn: int, end_lsn: int) -> str:
    return (
        f"the WAL from {format_lsn(lsn)} to {format_lsn(end_lsn)}, after the catalog, was not "
        "searched: tables altered in it are shown as they were before"
    )


def _lengths(arrays: Sequence[Array]) -> Array:
    return np.array([len(each) for each in arrays], np.int64)


def _numbers(counts: Array) -> Array:
    """1 to the count, for each count."""
    begins = np.cumsum(counts) - counts
    numbers: Array = np.arange(1, counts.sum() + 1) - np.repeat(begins, counts)
    return numbers


def _hash(numbers: Array) -> Array:
    """murmurhash32"""
    hashes = numbers.astype(np.uint32)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        hashes = (hashes ^ hashes >> np.uint32(shift)) * np.uint32(factor)
    rounded: Array = hashes ^ hashes >> np.uint32(16)
    return rounded


def _rotated(hashes: Array) -> Array:
    """The hash of a second key column, as it is combined with the first one's."""
    rotated: Array = hashes << np.uint32(8) | hashes >> np.uint32(24)
    return rotated
