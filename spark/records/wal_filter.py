"""`WalFilter`: the records that become rows. It is applied before any row is built."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quorum_wal.pgwal.rmgr import is_rmgr_id, rmgr_name
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.errors import FilterError
from quorum_wal.walrecords.filter_tables import FilterTables
from quorum_wal.walrecords.loads import Numbers


@dataclass(frozen=True, slots=True)
class WalFilter:
    """A record passes if it passes each set that is not empty.

    rmgrs      names as `pg_waldump` prints them: Heap, Btree, custom128; case does not matter
    relations  relfilenode numbers  } one of its blocks belongs to such a relation
    databases  oids                 } in such a database
    xids       its transaction, or its top-level transaction if the record has it
    """

    rmgrs: frozenset[str] = frozenset()
    relations: frozenset[int] = frozenset()
    databases: frozenset[int] = frozenset()
    xids: frozenset[int] = frozenset()


def filter_tables(wal_filter: WalFilter, version_major: int) -> FilterTables:
    """Raises FilterError for an rmgr that this version does not have, or a number that cannot be an
    oid or xid."""
    version = wal_version(version_major)
    ids = {
        rmgr_name(rmgr_id, version_major).lower(): rmgr_id
        for rmgr_id in range(256)
        if is_rmgr_id(rmgr_id, version)
    }
    passes = np.full(256, not wal_filter.rmgrs)
    for name in sorted(wal_filter.rmgrs):
        if name.lower() not in ids:
            names = ", ".join(rmgr_name(i, version_major) for i in ids.values() if i < 128)
            raise FilterError(
                f'Postgres {version_major} has no resource manager "{name}"',
                hint=f"The resource managers are: {names}.",
            )
        passes[ids[name.lower()]] = True
    return FilterTables(
        passes,
        _sorted("relation", wal_filter.relations),
        _sorted("database", wal_filter.databases),
        _sorted("xid", wal_filter.xids),
    )


def _sorted(what: str, numbers: Iterable[int]) -> Numbers:
    ordered = sorted(numbers)
    if ordered and not 0 <= ordered[0] <= ordered[-1] < 1 << 32:
        wrong = ordered[0] if ordered[0] < 0 else ordered[-1]
        raise FilterError(f"invalid {what} {wrong}: expected a number of 32 bits")
    return np.array(ordered, dtype=np.uint32)
