"""Options of the commands that use an archive: its URL, and settings for its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from quorum_wal.cli.shared_option import shared_option
from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import ObjectStore, open_store

F = TypeVar("F", bound=Callable[..., Any])


def archive_options(*, required: bool = True) -> Callable[[F], F]:
    """--archive URL and --archive-option KEY=VALUE, for `archive` and `archive_option`."""

    def decorate(function: F) -> F:
        url = shared_option(
            "--archive",
            "SK_ARCHIVE",
            metavar="URL",
            required=required,
            help="Where WAL and backups are kept: /folder, s3://bucket/prefix, gs://, az://.",
        )
        options = shared_option(
            "--archive-option",
            "SK_ARCHIVE_OPTION",
            multiple=True,
            metavar="KEY=VALUE",
            help="Setting of the archive's store: endpoint=http://..., region=... (repeatable).",
        )
        return url(options(function))

    return decorate


def open_archive(url: str, options: Sequence[str]) -> ObjectStore:
    """Raises ObjectStoreError, click.UsageError."""
    return open_store(url, parse_options(options))


def open_existing_archive(url: str, options: Sequence[str]) -> ObjectStore:
    """For a process that would wait for others to write into the archive: a folder that does not
    exist is a wrong name, or is not mounted. Raises ObjectStoreError, click.UsageError."""
    from quorum_wal.objectstore.local import LocalStore  # as open_store, only where it is used

    store = open_archive(url, options)
    if isinstance(store, LocalStore) and not store.root.is_dir():
        raise ObjectStoreError(
            f'the folder of the archive does not exist: "{store.root}"',
            hint="Correct --archive, or mount the folder. Safekeepers that run with --archive "
            "create it.",
        )
    return store


def parse_options(options: Sequence[str]) -> dict[str, str]:
    """Raises click.UsageError. The message does not repeat the option, which may be a secret."""
    pairs = [option.partition("=") for option in options]
    if not all(name and equals for name, equals, _ in pairs):
        raise click.UsageError("--archive-option needs KEY=VALUE")
    return {name: value for name, _, value in pairs}
