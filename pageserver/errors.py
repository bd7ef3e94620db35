"""Errors of `pageserver`; each says in one sentence what is wrong, and in `hint` what to do.

PageserverError
|-- SurveyError       WAL that cannot be surveyed: it needs what is not here
|-- RedoError         the server that replays an epoch did not do what it was asked
|-- LayerDamaged      an object of layers or frames is not what it should be
|-- PagesDeleted      a timeline's pages were deleted, for good
|-- PageNotFound      there is no such page, relation, database or cut
|-- TableNameError    a text that is no name of a table
|-- ServerUnreachable a server whose pages are to be checked does not answer
|-- BranchError       a branch that cannot be made, started or removed
`-- TableIncomplete   pages of a table, or of what describes it, are not all here
"""

from __future__ import annotations


class PageserverError(Exception):
    """Base of all."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class SurveyError(PageserverError):
    """WAL that cannot be surveyed, or replayed, with what is here."""


class RedoError(PageserverError):
    """The server that replays an epoch ended otherwise than it was asked to."""


class LayerDamaged(PageserverError):
    """Bytes of a layer or a frame are not what they should be."""


class PagesDeleted(PageserverError):
    """A timeline's pages were deleted, for good: there is a tombstone."""

    def __init__(self, timeline: object) -> None:
        super().__init__(
            f"the pages of timeline {timeline} were deleted",
            hint="Base backups and WAL stay: sk restore begins with a base backup, if one is left.",
        )


class PageNotFound(PageserverError):
    """There is no such page, relation, database or cut."""


class TableNameError(PageserverError):
    """A text that is no name of a table."""


class ServerUnreachable(PageserverError):
    """A server whose pages are to be checked does not answer, or not as asked."""


class BranchError(PageserverError):
    """A branch cannot be made, started, stopped or removed."""


class TableIncomplete(PageserverError):
    """Pages of a table, or of what describes it, are not all here: nothing is handed out."""
