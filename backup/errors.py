"""Errors of `backup`."""

from __future__ import annotations


class BackupError(Exception):
    """A backup or a restore failed. `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
