"""Errors of `safekeeper`.

SafekeeperError          something the user or a peer did; `sqlstate`, `hint`
SafekeeperError          an error of the user or a peer; `sqlstate`, `hint`
|-- ControlFileError     the control file is damaged or of another version: never reset it
|-- DataDirError         the data directory is in use, or has another id or version
`-- TimelineError        the timeline does not exist, exists already, or was deleted

Besides, StorageError of `storage`: a write or a flush failed, and the timeline stops. Its subclass
WalDamaged: a read did not return the bytes that were written.
"""

from __future__ import annotations

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.storage.errors import StorageError


class SafekeeperError(Exception):
    """Base class: the message, the hint, and the SQLSTATE to send to the client."""

    sqlstate = "XX000"

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if sqlstate:
            self.sqlstate = sqlstate


class ControlFileError(SafekeeperError):
    """data_corrupted: the promise in the file must not be lost, so nothing is guessed."""

    sqlstate = "XX001"


class DataDirError(SafekeeperError):
    """object_in_use, or the wrong directory."""

    sqlstate = "55006"


class TimelineError(SafekeeperError):
    """undefined_object or duplicate_object, by `sqlstate`."""

    sqlstate = "42704"


class WalDamaged(StorageError):
    """data_corrupted: WAL in [lsn, end_lsn), or at `lsn`, is not the WAL that was written."""

    def __init__(self, lsn: int, reason: str, end_lsn: int = 0) -> None:
        self.lsn = int(lsn)
        self.reason = reason
        self.end_lsn = max(int(end_lsn), self.lsn + 1)
        super().__init__(f"WAL at {format_lsn(lsn)} is damaged: {reason}", sqlstate="XX001")
