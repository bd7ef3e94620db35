"""Errors of `generations`, each with a `hint`.

GenerationError                  also: what is no suffix
|-- GenerationRefused            the answer is no, and will be when it is asked again
|   `-- RequestInvalid           what was asked makes no sense: a type, a range
|-- GenerationServiceUnavailable it may have been done, or not; asking again is always safe
`-- GenerationDatabaseError      the database cannot be used: not ours, newer, damaged
"""

from __future__ import annotations


class GenerationError(Exception):
    """Base of the tree: one sentence, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class GenerationRefused(GenerationError):
    """It changed nothing."""


class RequestInvalid(GenerationRefused):
    """A value of a wrong type or out of its range."""


class GenerationServiceUnavailable(GenerationError):
    """The service or its database did not answer. A number that was given out, and whose answer was
    lost, is given to nobody else."""


class GenerationDatabaseError(GenerationError):
    """No use to ask again before somebody has mended it."""
