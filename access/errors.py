"""Errors of `access`.

AccessError             what the operator gave cannot be used: a certificate, a user file, a limit
|                       of open files; `hint`
`-- PermissionDenied    a user's roles do not allow a command (42501)
"""

from __future__ import annotations

INSUFFICIENT_PRIVILEGE = "42501"


class AccessError(Exception):
    """Base of the tree: one sentence, what to do about it, and what to answer on the wire."""

    sqlstate = "F0000"  # config_file_error

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if sqlstate:
            self.sqlstate = sqlstate


class PermissionDenied(AccessError):
    """insufficient_privilege."""

    sqlstate = INSUFFICIENT_PRIVILEGE
