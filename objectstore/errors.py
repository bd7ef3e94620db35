"""Errors of `objectstore`.

ObjectStoreError         the store failed, or refused; `is_transient` if a retry may succeed
|-- ObjectNotFound       there is no such object
|-- ObjectDamaged        its bytes are not the bytes that were written
`-- ArchiveError         the content of the archive contradicts the request
"""

from __future__ import annotations


class ObjectStoreError(Exception):
    """One sentence, and a hint."""

    def __init__(self, message: str, *, hint: str = "", is_transient: bool = False) -> None:
        super().__init__(message)
        self.hint = hint
        self.is_transient = is_transient


class ObjectNotFound(ObjectStoreError):
    """No object has this key."""


class ObjectDamaged(ObjectStoreError):
    """Truncated, changed, or of an unknown format."""


class ArchiveError(ObjectStoreError):
    """Two logs under one name, or no log."""
