"""Errors of `pgwal`.

WalError                  the bytes or the text are not what Postgres would have written
|-- LsnSyntaxError        not an LSN
|-- SegmentNameError      not the name of a WAL segment, or an impossible segment size
|-- UnsupportedVersionError   a Postgres major version whose WAL we cannot read
|-- TimelineHistoryError  not a timeline history; carries a hint
`-- WalFormatError        a page or a record is damaged; carries the position
"""

from __future__ import annotations


class WalError(Exception):
    """Anything wrong with WAL or with its names. SQLSTATE for the wire: data_corrupted."""

    sqlstate = "XX001"


class LsnSyntaxError(WalError):
    """The text is not an LSN."""

    sqlstate = "22P02"


class SegmentNameError(WalError):
    """The text is not the name of a WAL segment, or the segment size is impossible."""

    sqlstate = "22023"


class UnsupportedVersionError(WalError):
    """The WAL format of this Postgres major version is not known to us."""

    sqlstate = "0A000"


class TimelineHistoryError(WalError):
    """The text is not a timeline history, or a timeline is not part of one."""

    sqlstate = "22023"

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class WalFormatError(WalError):
    """A page header or a record failed its checks at `lsn`; the text says expected and found."""

    def __init__(self, lsn: int, message: str) -> None:
        super().__init__(message)
        self.lsn = lsn
