"""Errors of `pageserver`. The message describes the error, `hint` the remedy.

PageserverError
|-- SurveyError       WAL cannot be surveyed or replayed: required data is missing
|-- RedoError         a server that replays WAL failed, or its result is not valid
|-- LayerDamaged      a layer or frame has unexpected contents
|-- PagesDeleted      the pages of a timeline were permanently deleted
|-- PageNotFound      the page, relation, database or cut does not exist
|-- TableNameError    a string is not a valid table name
|-- ServerUnreachable the server to be checked does not answer, or answers unexpectedly
|-- BranchError       a branch cannot be created, started, stopped or removed
`-- TableIncomplete   pages of a table, or of its catalogs, are missing
"""

from __future__ import annotations


class PageserverError(Exception):
    """Base class of the errors of this package."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SurveyError(PageserverError):
    """The WAL cannot be surveyed or replayed, because required data is missing."""


class RedoError(PageserverError):
    """A server that replays WAL failed, or its result is not valid."""


class LayerDamaged(PageserverError):
    """A layer or a frame has unexpected contents."""


class PagesDeleted(PageserverError):
    """The pages of a timeline were permanently deleted: a tombstone exists."""

    def __init__(self, timeline: object) -> None:
        super().__init__(
            f"the pages of timeline {timeline} were deleted",
            hint="Base backups and WAL are kept. Use sk restore if a base backup still exists.",
        )


class PageNotFound(PageserverError):
    """The page, relation, database or cut does not exist."""


class TableNameError(PageserverError):
    """The string is not a valid table name."""


class ServerUnreachable(PageserverError):
    """The server whose pages are to be checked does not answer, or answers unexpectedly."""


class BranchError(PageserverError):
    """A branch cannot be made, started, stopped or removed."""


class TableIncomplete(PageserverError):
    """Pages of a table, or of its catalogs, are missing: no rows are returned."""
