"""`FilterTables`: the filter of a survey of records, in a form for compiled loops."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from quorum_wal.walrecords.loads import Int, Numbers


class FilterTables(NamedTuple):
    """A flag for each rmgr id, and sorted u32. A record passes if it passes each table that is not
    empty: one of its blocks is in `relations` and `databases`, and its xid or top-level xid is in
    `xids`."""

    rmgrs: Numbers
    relations: Numbers
    databases: Numbers
    xids: Numbers


def pass_all() -> FilterTables:
    """A filter that every record passes."""
    return FilterTables(np.full(256, True), *(np.empty(0, np.uint32) for _ in range(3)))


@njit(cache=True, nogil=True)
def is_among(ordered: Numbers, number: Int) -> bool:
    """Whether `number` is in a sorted table."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < number:
            low = middle + 1
        else:
            high = middle
    return bool(low < len(ordered) and ordered[low] == number)
