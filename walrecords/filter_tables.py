"""`FilterTables`: which records a survey passes on, as compiled loops read it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from walrecords.loads import Int, Numbers


class FilterTables(NamedTuple):
    """A flag for each rmgr id, and sorted u32: a record passes if it passes each that is not empty.
    Of relations and databases one of its blocks is, of xids its own or its top-level one."""

    rmgrs: Numbers
    relations: Numbers
    databases: Numbers
    xids: Numbers


def pass_all() -> FilterTables:
    """Every record passes."""
    return FilterTables(np.full(256, True), *(np.empty(0, np.uint32) for _ in range(3)))


@njit(cache=True, nogil=True)
def is_among(ordered: Numbers, number: Int) -> bool:
    """Whether it is one of these, as FilterTables has them."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        if ordered[middle] < number:
            low = middle + 1
        else:
            high = middle
    return bool(low < len(ordered) and ordered[low] == number)
