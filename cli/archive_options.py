"""Options of the commands that use an archive: its URL, and settings for its store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from quorum_wal.objectstore.store import ObjectStore, open_store

F = TypeVar("F", bound=Callable[..., Any])


def archive_options(*, required: bool = True) -> Callable[[F], F]:
    """--archive URL and --archive-option KEY=VALUE, for `archive` and `archive_option`."""

    def decorate(function: F) -> F:
        url = click.option(
            "--archive",
            metavar="URL",
            required=required,
            envvar="SK_ARCHIVE",
            show_envvar=True,
            help="Where WAL and backups are kept: /folder, s3://bucket/prefix, gs://, az://.",
        )
        options = click.option(
            "--archive-option",
            multiple=True,
            metavar="KEY=VALUE",
            envvar="SK_ARCHIVE_OPTION",
            show_envvar=True,
            help="Setting of the archive's store: endpoint=http://..., region=... (repeatable).",
        )
        return url(options(function))

    return decorate


def open_archive(url: str, options: Sequence[str]) -> ObjectStore:
    """Raises ObjectStoreError, click.UsageError."""
    return open_store(url, parse_options(options))


def parse_options(options: Sequence[str]) -> dict[str, str]:
    """Raises click.UsageError. The message does not repeat the option, which may be a secret."""
    pairs = [option.partition("=") for option in options]
    if not all(name and equals for name, equals, _ in pairs):
        raise click.UsageError("--archive-option needs KEY=VALUE")
    return {name: value for name, _, value in pairs}
