"""`server_account`: the account that Postgres runs as when we are root, which it refuses to run
as."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.pg_server.errors import Unavailable

ACCOUNT_NAMES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the system, and its group."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """Returns the first of ACCOUNT_NAMES that exists. Returns None when we are not root: the server
    then runs as our own user.

    Raises Unavailable when we are root and no such account exists.
    """
    if os.geteuid() != 0:
        return None
    for name in ACCOUNT_NAMES:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise Unavailable(
        f"Postgres does not run as root, and there is no user {' or '.join(ACCOUNT_NAMES)}",
        hint="Create one of them, or run as an ordinary user.",
    )


def account_of(data_dir: Path) -> Account | None:
    """The account of the server in `data_dir`. When we are root, this is the owner of an existing
    directory unless the owner is root, else server_account(). None: our own user. Raises
    Unavailable."""
    account = server_account()
    if account is None or not data_dir.is_dir():
        return account
    found = data_dir.stat()
    return Account(account.name, found.st_uid, found.st_gid) if found.st_uid else account


def give(path: Path, owner: Account | None) -> None:
    """Change the owner of `path` to the account of a server. Does not follow a symbolic link. Does
    nothing if `owner` is None. Raises OSError."""
    if owner is not None:
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
