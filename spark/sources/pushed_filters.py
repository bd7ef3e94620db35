"""Filters of Spark on the LSN, the resource manager and the transaction of a record.

    WHERE lsn >= 50331648 AND lsn < 67108864 AND rmgr = 'Heap' AND xid IN (741, 742)

Law: a pushed filter never removes a requested row. Spark applies every filter again, so a filter
that is not understood costs time, but no row. Spark 4.0 has no filters and pushes none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceReader

from quorum_wal.pgwal.rmgr import is_rmgr_id, rmgr_name
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.inputs.wal_reader import WalRange
from quorum_wal.spark.records.wal_filter import WalFilter

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter

T = TypeVar("T")
_LSN_MAX = 1 << 63


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """LSNs in [from_lsn, to_lsn); None means any resource manager, any transaction."""

    from_lsn: int = 0
    to_lsn: int = _LSN_MAX
    rmgrs: frozenset[str] | None = None
    xids: frozenset[int] | None = None

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> PushedFilters:
        pushed = cls()
        for each in filters:
            pushed = pushed._and(each)
        return pushed

    def _and(self, pushed: Filter) -> PushedFilters:
        """A filter that is not understood changes nothing."""
        match pushed:
            case datasource.GreaterThanOrEqual(("lsn",), int(lsn)):
                return replace(self, from_lsn=max(self.from_lsn, lsn))
            case datasource.GreaterThan(("lsn",), int(lsn)):
                return replace(self, from_lsn=max(self.from_lsn, lsn + 1))
            case datasource.LessThan(("lsn",), int(lsn)):
                return replace(self, to_lsn=min(self.to_lsn, lsn))
            case datasource.LessThanOrEqual(("lsn",), int(lsn)):
                return replace(self, to_lsn=min(self.to_lsn, lsn + 1))
            case datasource.EqualTo(("lsn",), int(lsn)):
                to_lsn = min(self.to_lsn, lsn + 1)
                return replace(self, from_lsn=max(self.from_lsn, lsn), to_lsn=to_lsn)
            case datasource.EqualTo(("rmgr",), str(name)):
                return replace(self, rmgrs=_both(self.rmgrs, [name]))
            case datasource.In(("rmgr",), names):
                return replace(self, rmgrs=_both(self.rmgrs, names))
            case datasource.EqualTo(("xid",), int(xid)):
                return replace(self, xids=_both(self.xids, [xid]))
            case datasource.In(("xid",), xids):
                return replace(self, xids=_both(self.xids, xids))
            case _:
                return self

    def narrow_range(self, whole: WalRange) -> WalRange:
        start_lsn = min(max(whole.start_lsn, self.from_lsn), whole.end_lsn)
        end_lsn = max(min(whole.end_lsn, self.to_lsn), start_lsn)
        is_boundary = whole.is_boundary and start_lsn == whole.start_lsn
        return WalRange(start_lsn, end_lsn, whole.limit_lsn, is_boundary)

    def narrow_filter(self, asked: WalFilter, version_major: int) -> WalFilter:
        """In a WalFilter an empty set means all. So if nothing is left, the filter stays as
        requested, and Spark drops the rows."""
        version = wal_version(version_major)
        known = {
            rmgr_name(rmgr_id, version_major)
            for rmgr_id in range(256)
            if is_rmgr_id(rmgr_id, version)
        }
        rmgrs, xids = asked.rmgrs, asked.xids
        if self.rmgrs is not None:
            wanted = {name.lower() for name in asked.rmgrs or known}
            rmgrs = frozenset(n for n in self.rmgrs & known if n.lower() in wanted) or rmgrs
        if self.xids is not None:
            xids = frozenset(x for x in self.xids if not asked.xids or x in asked.xids) or xids
            if not all(0 <= xid < 1 << 32 for xid in xids):
                xids = asked.xids
        return replace(asked, rmgrs=rmgrs, xids=xids)


class PushFilters:
    """The method `pushFilters` of a reader, as an object.

    Spark refuses a reader that overrides the method while
    spark.sql.python.filterPushdown.enabled is off. Filters are applied in any case, so our readers
    must not be refused. This object pretends to be the method of the base class, and Spark calls it
    only if the setting is on.
    """

    def __init__(self, take: Callable[[PushedFilters], None]) -> None:
        self._take = take
        self.__func__ = DataSourceReader.pushFilters

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Returns all filters, so that Spark applies them again."""
        self._take(PushedFilters.of(filters))
        return filters


def _both(before: frozenset[T] | None, values: Iterable[T]) -> frozenset[T]:
    found = frozenset(values)
    return found if before is None else before & found
