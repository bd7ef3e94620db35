"""Errors of `generations`, each with a `hint`.

GenerationError                  also raised directly for an invalid suffix
|-- GenerationRefused            the request was refused; repeating it has the same result
|   `-- RequestInvalid           a value of the request has a wrong type or is out of range
|-- GenerationServiceUnavailable the outcome is unknown; repeating the request is always safe
`-- GenerationDatabaseError      the database cannot be used: foreign, newer, or damaged
"""

from __future__ import annotations


class GenerationError(Exception):
    """Base class: a message, and a hint what to do."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class GenerationRefused(GenerationError):
    """The request was refused and changed nothing."""


class RequestInvalid(GenerationRefused):
    """A value has a wrong type or is out of range."""


class GenerationServiceUnavailable(GenerationError):
    """The service or its database did not answer. A number whose answer was lost is never assigned
    again."""


class GenerationDatabaseError(GenerationError):
    """Repeating the request is useless until an administrator repairs the database."""
