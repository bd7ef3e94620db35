"""Errors of `objectstore`.

ObjectStoreError         the store failed, or refused; `is_transient` when another try may succeed
|-- ObjectNotFound       there is no such object
|-- ObjectDamaged        its bytes are not those that were written
`-- ArchiveError         what is in the archive contradicts what is asked of it
"""

from __future__ import annotations


class ObjectStoreError(Exception):
    """One sentence, and what to do about it."""

    def __init__(self, message: str, *, hint: str = "", is_transient: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.is_transient = is_transient


class ObjectNotFound(ObjectStoreError):
    """No object has this key."""


class ObjectDamaged(ObjectStoreError):
    """Cut, changed, or of a format this release does not know."""


class ArchiveError(ObjectStoreError):
    """Two logs under one name, or none."""
