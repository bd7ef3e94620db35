"""`server_account`: Postgres refuses to run as root; this is whom it runs as instead."""

from __future__ import annotations

import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from pg_server.errors import Unavailable

ACCOUNT_NAMES = ("postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """A user of the system, and its group."""

    name: str
    uid: int
    gid: int


def server_account() -> Account | None:
    """The first of ACCOUNT_NAMES that exists; None when we are not root and simply stay who we are.

    Raises Unavailable when root has no such account.
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
        hint="create one of them, or run as an ordinary user",
    )


def account_of(data_dir: Path) -> Account | None:
    """Whose the server in `data_dir` will be: root gives it to the one who has the empty folder
    already, or to server_account(); None: our own. Raises Unavailable."""
    account = server_account()
    if account is None or not data_dir.is_dir():
        return account
    found = data_dir.stat()
    return Account(account.name, found.st_uid, found.st_gid) if found.st_uid else account


def give(path: Path, owner: Account | None) -> None:
    """To the account of a server; a link itself, not what it leads to. None: it stays ours. Raises
    OSError."""
    if owner is not None:
        os.chown(path, owner.uid, owner.gid, follow_symlinks=False)
