"""`keep_memory`: a worker of Spark keeps what its next task needs again.

    modules        garbage is collected after each task: it would look at all objects of all
                   modules, which takes 20 to 50 ms, as long as to decode some MB of WAL
    freed arrays   glibc returns them to the kernel, and gets them back page by page: a tenth of
                   the time of a task

It is called in workers, never in the process of a user.
"""

from __future__ import annotations

import ctypes
import gc
from functools import cache

#: of mallopt(3): the numbers of its parameters, and the largest threshold that it accepts for mmap
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_BYTES_MIN = 32 << 20
#: Freed memory at the end of the heap that is kept.
KEPT_BYTES_MAX = 128 << 20


def keep_memory() -> None:
    """Call it at the start of a task. What exists then is not looked at again: the garbage of the
    task before was collected. Takes a microsecond. Source: the daemon of PySpark."""
    gc.freeze()
    _keep_freed_memory()


@cache
def _keep_freed_memory() -> None:
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_BYTES_MIN)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES_MAX)
