"""Errors of `safekeeper`.

SafekeeperError          something the user or a peer did; `sqlstate`, `hint`
|-- ControlFileError     the control file is damaged or of another version: never reset it
|-- DataDirError         the data directory is in use, of another id, or of another version
`-- TimelineError        no such timeline, one that exists already, one that was deleted

Beside it, StorageError of `storage`: a write or a flush failed, and the timeline stops; and of our
own WalDamaged, a read that did not bring what was written.
"""

from __future__ import annotations

from pgwal.lsn import format_lsn
from storage.errors import StorageError


class SafekeeperError(Exception):
    """Base of the tree: one sentence, what to do about it, and what to answer on the wire."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if sqlstate:
            self.sqlstate = sqlstate


class ControlFileError(SafekeeperError):
    """data_corrupted: the promise in it must never be forgotten, so nothing is guessed."""

    sqlstate = "XX001"


class DataDirError(SafekeeperError):
    """object_in_use, or the wrong directory."""

    sqlstate = "55006"


class TimelineError(SafekeeperError):
    """undefined_object or duplicate_object, by `sqlstate`."""

    sqlstate = "42704"


class WalDamaged(StorageError):
    """data_corrupted: WAL in [lsn, end_lsn), or at `lsn`, is not what was written."""

    def __init__(self, lsn: int, reason: str, end_lsn: int = 0) -> None:
        self.lsn = int(lsn)
        self.reason = reason
        self.end_lsn = max(int(end_lsn), self.lsn + 1)
        super().__init__(f"WAL at {format_lsn(lsn)} is damaged: {reason}", sqlstate="XX001")
