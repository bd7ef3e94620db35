"""Options of the branch commands, and the log tail of a server that does not start."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from quorum_wal.pageserver.branches.branch_record import PORT_MAX, PORT_MIN
from quorum_wal.pg_server.errors import ServerFailed

F = TypeVar("F", bound=Callable[..., Any])


def branches_dir_option(function: F) -> F:
    """--branches-dir."""
    return click.option(
        "--branches-dir",
        type=click.Path(path_type=Path, file_okay=False),
        required=True,
        envvar="SK_BRANCHES_DIR",
        show_envvar=True,
        help="Folder of the branches, one subfolder each, on a disk with room for whole databases.",
    )(function)


def port_option(text: str) -> Callable[[F], F]:
    """--port."""
    return click.option("--port", type=click.IntRange(PORT_MIN, PORT_MAX), help=text)


@contextmanager
def log_tail_shown() -> Iterator[None]:
    """Prints the last lines of the log of a server that does not start."""
    try:
        yield
    except ServerFailed as error:
        for line in error.log_tail:
            click.echo(f"    {line}", err=True)
        raise
