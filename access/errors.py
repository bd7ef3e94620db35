"""Errors of `access`.

AccessError             the operator's configuration cannot be used: a certificate, a user file, the
|                       limit of open files; `hint`
`-- PermissionDenied    a user's roles do not allow a command (42501)
"""

from __future__ import annotations

INSUFFICIENT_PRIVILEGE = "42501"


class AccessError(Exception):
    """Base class: the message, the hint, and the SQLSTATE to send to the client."""

    sqlstate = "F0000"  # config_file_error

    def __init__(self, message: str, *, hint: str = "", sqlstate: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        if sqlstate:
            self.sqlstate = sqlstate


class PermissionDenied(AccessError):
    """insufficient_privilege."""

    sqlstate = INSUFFICIENT_PRIVILEGE
