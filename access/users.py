"""The user file: the users that may connect, their roles, and their verifiers.

    # a comment
    primary1:proposer:SCRAM-SHA-256$4096:<salt>$<StoredKey>:<ServerKey>
    ops:monitor,replica:SCRAM-SHA-256$4096:...
    `-------------------`- as in pg_authid.rolpassword, so that it can be copied from there
        `- one role or more, separated by commas

The file contains no passwords. But a person who reads it can impersonate the server: keep it
private. Errors name the line, never its content, which may be a password by mistake.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from quorum_wal.access.roles import Role
from quorum_wal.pgwire.auth import ScramVerifier
from quorum_wal.storage.private_file import NotPrivate, read_private

#: As in Postgres, which truncates longer names (NAMEDATALEN).
NAME_BYTES_MAX = 63
_NAME = re.compile(r"[^\s:#\x00-\x1f\x7f](?:[^:#\x00-\x1f\x7f]*[^\s:#\x00-\x1f\x7f])?")


class UserFileError(ValueError):
    """An invalid line, or a file that cannot be read."""


@dataclass(frozen=True, slots=True)
class User:
    """str() returns the user's line."""

    name: str
    roles: frozenset[Role]
    verifier: ScramVerifier

    def __post_init__(self) -> None:
        """Raises UserFileError."""
        self.check_name(self.name)
        if not self.roles:
            raise UserFileError("a user must have at least one role")

    @staticmethod
    def check_name(name: str) -> None:
        """Raises UserFileError."""
        size = len(name.encode("utf-8", "surrogateescape"))
        if not _NAME.fullmatch(name) or size > NAME_BYTES_MAX:
            raise UserFileError(
                f'a user name must have 1 to {NAME_BYTES_MAX} bytes, no ":" or "#", '
                "and no space at its start or end"
            )

    @classmethod
    def parse(cls, line: str) -> User:
        """Raises UserFileError."""
        name, _, rest = line.strip().partition(":")
        roles, _, verifier = rest.partition(":")
        if not verifier or "$" in roles:  # "name:verifier" also has a colon
            raise UserFileError("expected user:role[,role]:SCRAM-SHA-256$...")
        try:
            return cls(name, parse_roles(roles), ScramVerifier.parse(verifier))
        except UserFileError:
            raise
        except ValueError as error:
            raise UserFileError(str(error)) from error

    def __str__(self) -> str:
        roles = ",".join(role.value for role in Role if role in self.roles)
        return f"{self.name}:{roles}:{self.verifier}"


Users = Mapping[str, User]


def parse_roles(text: str) -> frozenset[Role]:
    """From `role,role`. Raises UserFileError."""
    try:
        return frozenset(Role(word.strip()) for word in text.split(","))
    except ValueError:
        known = ", ".join(role.value for role in Role)
        raise UserFileError(f"unknown role: expected {known}") from None


def parse_users(text: str) -> dict[str, User]:
    """The whole file. Raises UserFileError with the number of the line."""
    users: dict[str, User] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if _is_comment(line):
            continue
        try:
            user = User.parse(line)
            if user.name in users:
                raise UserFileError("its user is already in a line above")
        except UserFileError as error:
            raise UserFileError(f"line {number}: {error}") from error
        users[user.name] = user
    return users


def read_users(path: Path) -> dict[str, User]:
    """The users in a server's file, which other users may not read. Raises UserFileError,
    NotPrivate.

    A file without users is an error: it is being written, or was lost. It never means that no user
    may connect.
    """
    try:
        users = parse_users(read_private(path).decode())
    except NotPrivate:
        raise
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error
    if not users:
        raise UserFileError("it has no users")
    return users


def read_user_file(path: Path) -> str:
    """Its text, to edit; does not check the mode. Raises UserFileError."""
    try:
        if path.exists() and not path.is_file():
            raise UserFileError("it is not a regular file")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError | UnicodeDecodeError) -> UserFileError:
    reason = error.strerror if isinstance(error, OSError) else "it is not text"
    return UserFileError(f"could not be read: {reason}")


def edit_user_file(text: str, name: str, user: User | None) -> str:
    """The text with this user's line replaced, appended, or removed (None); the rest stays."""
    lines = [] if user is None else [str(user)]
    kept = []
    for line in text.removesuffix("\n").split("\n") if text else []:
        if _is_comment(line) or line.strip().partition(":")[0] != name:
            kept.append(line)
        else:
            kept += lines
            lines = []
    return "".join(f"{line}\n" for line in (*kept, *lines))


def _is_comment(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")
