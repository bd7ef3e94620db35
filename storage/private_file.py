"""Files that hold a secret: keys, verifiers, tokens. Other users must not have access to them.

Law, as Postgres has it for ssl_key_file: a regular file, owned by our user with mode 0600 or less,
or owned by root with mode 0640 or less. The latter allows a group to read root's file, for several
services. Source: Postgres `be-secure-common.c`, `check_ssl_key_file_permissions`; if we run as
root, libpq's `fe-secure-openssl.c`.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IRWXG | stat.S_IRWXO
_OTHERS_OF_ROOTS = stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO


class NotPrivate(OSError):
    """Other users have access to the file. `hint` names the owners and modes that are allowed."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.hint = (
            "The file must belong to the user that runs this process, with mode 0600 or less, or "
            "to root, with mode 0640 or less."
        )


def read_private(path: Path) -> bytes:
    """The content of the file. Raises OSError, NotPrivate."""
    with open(path, "rb", opener=_open) as file:
        _check(os.fstat(file.fileno()), path)
        return file.read()


def check_private(path: Path) -> None:
    """For a file that another process will read. Raises OSError, NotPrivate."""
    _check(os.stat(path), path)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # do not wait for the writer of a pipe


def _check(found: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NotPrivate(f'"{path}" is not a regular file')
    if found.st_uid not in (0, os.geteuid()):
        raise NotPrivate(f'"{path}" is owned by uid {found.st_uid}, neither by our user nor root')
    allowed_not = _OTHERS if found.st_uid else _OTHERS_OF_ROOTS
    if found.st_mode & allowed_not:
        mode = stat.S_IMODE(found.st_mode)
        raise NotPrivate(f'"{path}" has group or world access: its mode is 0{mode:o}')
