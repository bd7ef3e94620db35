"""Arrays in memory that Arrow allocates with malloc, as it does for other large buffers.

Numpy and Arrow's default pool return each large buffer to the system. The system then clears every
page of the next one, which costs more than filling it.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from quorum_wal.walrecords.loads import Numbers

_POOL = pa.system_memory_pool()


def pool_array(count: int, dtype: DTypeLike) -> Numbers:
    """An uninitialised array."""
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(pa.allocate_buffer(count * itemsize, memory_pool=_POOL), dtype, count)
