"""Errors of `pgwal`.

WalError                  the bytes or the text are not valid WAL, or not its names
|-- LsnSyntaxError        not an LSN
|-- SegmentNameError      not the name of a WAL segment, or an impossible segment size
|-- UnsupportedVersionError   a Postgres major version whose WAL we cannot read
|-- TimelineHistoryError  not a timeline history; carries a hint
`-- WalFormatError        a page or a record is damaged; carries the position
"""

from __future__ import annotations


class WalError(Exception):
    """Invalid WAL, or an invalid name of WAL. SQLSTATE for the wire: data_corrupted."""

    sqlstate = "XX001"


class LsnSyntaxError(WalError):
    """The text is not an LSN."""

    sqlstate = "22P02"


class SegmentNameError(WalError):
    """The text is not the name of a WAL segment, or the segment size is impossible."""

    sqlstate = "22023"


class UnsupportedVersionError(WalError):
    """We cannot read the WAL format of this Postgres major version."""

    sqlstate = "0A000"


class TimelineHistoryError(WalError):
    """The text is not a timeline history, or a timeline is not part of one."""

    sqlstate = "22023"

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class WalFormatError(WalError):
    """A page header or a record failed its checks at `lsn`; the text has expected and found."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn
