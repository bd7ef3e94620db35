"""`sk user`: edit the file with the users of a listener and their roles."""

from __future__ import annotations

import fcntl
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from quorum_wal.access.roles import Role
from quorum_wal.access.users import (
    User,
    UserFileError,
    edit_user_file,
    parse_users,
    read_user_file,
)
from quorum_wal.cli.listening import PATH
from quorum_wal.cli.output import CommandError, console, plain_table, print_json
from quorum_wal.cli.parameters import json_option
from quorum_wal.pgwire.auth import make_verifier
from quorum_wal.storage.durable import replace_file, storage_errors

SALT_BYTES = 16  # as Postgres takes them: SCRAM_DEFAULT_SALT_LEN


@click.group()
def user() -> None:
    """Add, list and remove the users in the --user-file of a listener.

    A safekeeper, or the port of sk attach --qsync, rereads the file when it changes; no restart is
    needed. Copy the file to all safekeepers.
    """


@user.command()
@click.argument("file", type=PATH)
@click.argument("name", metavar="USER")
@click.option(
    "--role",
    "roles",
    type=click.Choice([role.value for role in Role]),
    multiple=True,
    required=True,
    help="Role of the user (repeatable).",
)
@click.option("--replace", is_flag=True, help="Give a user that exists a new password and roles.")
def add(file: Path, name: str, roles: tuple[str, ...], replace: bool) -> None:
    """Add USER to FILE, which is created if it does not exist.

    Prompts for the password, or reads the first line of a pipe. The password is not stored. The
    file has a SCRAM-SHA-256 verifier, from which the password cannot be computed.
    """
    _check_name(name)
    verifier = make_verifier(_password(), secrets.token_bytes(SALT_BYTES))
    added = User(name, frozenset(map(Role, roles)), verifier)
    with _locked(file):
        text = _read(file) if file.exists() else ""
        exists = name in _parse(file, text)
        if exists and not replace:
            raise CommandError(f'"{file}" already has user "{name}"', "Give --replace.")
        _write(file, edit_user_file(text, name, added))
    click.echo(f'{"replaced" if exists else "added"} user "{name}"', err=True)


@user.command()
@click.argument("file", type=PATH)
@click.argument("name", metavar="USER")
def remove(file: Path, name: str) -> None:
    """Remove USER from FILE.

    From then on, commands of the user are refused. Streams that run are not ended.
    """
    with _locked(file):
        text = _read(file)
        users = _parse(file, text)
        if name not in users:
            raise CommandError(f'"{file}" has no user "{name}"', "Run sk user list to see them.")
        if len(users) == 1:
            raise CommandError(
                f'"{name}" is the last user in "{file}", and a file without users is ignored',
                "Add another user first. To refuse all connections, stop the safekeeper.",
            )
        _write(file, edit_user_file(text, name, None))


@user.command("list")
@click.argument("file", type=PATH)
@json_option
def list_users(file: Path, json: bool) -> None:
    """List the users in FILE and their roles."""
    users = _parse(file, _read(file))
    rows = {u.name: [role.value for role in Role if role in u.roles] for u in users.values()}
    if json:
        print_json([{"user": name, "roles": roles} for name, roles in rows.items()])
        return
    table = plain_table("user", "roles")
    for name, roles in rows.items():
        table.add_row(name, ", ".join(roles))
    console().print(table)


def _check_name(name: str) -> None:
    """Checks the name before the prompt for a password. Raises click.UsageError."""
    try:
        User.check_name(name)
    except UserFileError as error:
        raise click.UsageError(str(error)) from error


def _password() -> str:
    if sys.stdin.isatty():
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        password = sys.stdin.readline().rstrip("\n")
    if not password:
        raise CommandError("the password is empty", "Write it to stdin as one line.")
    return str(password)


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Serializes concurrent edits. Locks the folder, because the file itself is replaced."""
    with storage_errors(file.parent, "open directory"):
        folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _read(file: Path) -> str:
    try:
        return read_user_file(file)
    except UserFileError as error:
        raise _unusable(file, error) from error


def _parse(file: Path, text: str) -> dict[str, User]:
    try:
        return parse_users(text)
    except UserFileError as error:
        raise _unusable(file, error) from error


def _write(file: Path, text: str) -> None:
    """Replaces the file atomically. Its permissions are kept; a new file is readable only by its
    owner."""
    replace_file(file.resolve(), text.encode(), like=file if file.exists() else None)


def _unusable(file: Path, error: UserFileError) -> CommandError:
    return CommandError(f'user file "{file}": {error}', "Correct the file.")
