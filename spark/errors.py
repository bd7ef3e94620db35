"""Errors of `spark`; each says in one sentence what is wrong, and in `hint` what to do about it.

SparkWalError
|-- WalInputError         WAL that is not there, cannot be read, or is not of the log it should be
|-- OptionError           an option that nobody knows, or that contradicts another
|   |-- ColumnError       not a column, or the same one twice
|   `-- FilterError       no record can ever pass: what it names does not exist
|-- CatalogError          a catalog that cannot be read, or that does not fit the WAL
`-- LakeError             a lake that is of another job, or damaged
"""

from __future__ import annotations


class SparkWalError(Exception):
    """Base of all."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Executors send errors to the driver by pickle, which forgets keyword arguments.
        return _restore, (type(self), str(self), self.hint)


class WalInputError(SparkWalError):
    """WAL that is not there, cannot be read, or is not of the log that was named."""


class OptionError(SparkWalError):
    """An option that nobody knows, or that contradicts another."""


class ColumnError(OptionError):
    """Not a column of the WAL, or the same one twice."""


class FilterError(OptionError):
    """A filter names what the server's version does not have."""


class CatalogError(SparkWalError):
    """A catalog that cannot be read, or does not fit the WAL."""


class LakeError(SparkWalError):
    """A lake that is of another job, or damaged."""


def _restore(kind: type[SparkWalError], message: str, hint: str) -> SparkWalError:
    return kind(message, hint=hint)
