"""Arrays in memory that Arrow takes from malloc, where other large buffers come from, too.

Numpy's own and Arrow's default pool give theirs back to the system one by one, which clears every
page of the next one: that costs more than to fill them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from walrecords.loads import Numbers

_POOL = pa.system_memory_pool()


def pool_array(count: int, dtype: DTypeLike) -> Numbers:
    """Of any content."""
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(pa.allocate_buffer(count * itemsize, memory_pool=_POOL), dtype, count)
