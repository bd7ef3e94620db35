"""The error of `storage`, and the errors of the system that mean a full disk."""

from __future__ import annotations

import errno

FULL_DISK = (errno.ENOSPC, errno.EDQUOT)


class StorageError(Exception):
    """A local read, write or flush failed; `sqlstate` is io_error or disk_full.

    After a failed write or flush the state of the page cache is unknown: nothing is retried.
    """

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.sqlstate = sqlstate or "58030"
