"""Errors of `spark`. The message says in one sentence what is wrong; `hint` says what to do.

SparkWalError
|-- WalInputError         WAL that is missing, unreadable, or not of the expected log
|-- OptionError           an unknown option, or options that contradict each other
|   |-- ColumnError       an unknown column, or one named twice
|   `-- FilterError       no record can pass: the filter names something that does not exist
|-- CatalogError          a catalog that cannot be read, or does not fit the WAL
|-- UndecodedChange       a change, or WAL with changes, that could not be decoded
|-- DeadLetterError       rows that could not be written to the dead letter
|-- SpillError            changes that could not be stored in a temporary file
|-- LakeError             a lake of another job, or a damaged one
|-- MissingPackage        a machine of a cluster lacks a package
|-- UnsupportedSpark      a version of Spark, or a kind of session, that lacks a feature
`-- MirrorError           a mirror that does not fit its WAL, or a change that it cannot store
"""

from __future__ import annotations


class SparkWalError(Exception):
    """Base class of all errors of this package."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def __reduce__(self) -> tuple[object, ...]:
        # Executors send errors to the driver with pickle, which drops keyword arguments.
        return _restore, (type(self), str(self), self.hint)


class WalInputError(SparkWalError):
    """WAL that is missing, unreadable, or not of the expected log."""


class OptionError(SparkWalError):
    """An unknown option, or options that contradict each other."""


class ColumnError(OptionError):
    """An unknown column, or one named twice."""


class FilterError(OptionError):
    """A filter names something that the server's version does not have."""


class CatalogError(SparkWalError):
    """A catalog that cannot be read, or does not fit the WAL."""


class UndecodedChange(SparkWalError):
    """A change, or WAL with changes, that could not be decoded."""


class DeadLetterError(SparkWalError):
    """Rows that could not be written to the dead letter."""


class SpillError(SparkWalError):
    """Changes of large transactions that could not be stored in a temporary file."""


class LakeError(SparkWalError):
    """A lake of another job, or a damaged one."""


class MissingPackage(SparkWalError):
    """A machine of a cluster lacks a package."""


class UnsupportedSpark(SparkWalError):
    """A version of Spark, or a kind of session, that lacks a feature."""


class MirrorError(SparkWalError):
    """A mirror that does not fit its WAL, or a change that it cannot store."""


def _restore(kind: type[SparkWalError], message: str, hint: str) -> SparkWalError:
    return kind(message, hint=hint)
