"""Arrays in the memory that Arrow keeps for the next batch: the system's is cleared page by page,
which costs more than to fill them.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike

from spark.records.loads import Numbers


def pool_array(count: int, dtype: DTypeLike) -> Numbers:
    """Of any content."""
    itemsize = np.dtype(dtype).itemsize
    return np.frombuffer(pa.allocate_buffer(count * itemsize), dtype, count)
