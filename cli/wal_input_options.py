"""Options of the commands that read WAL with Spark: the source of the WAL, and its range.

They have the names of the options of the sources, `spark.read.format("pg_wal").option(...)`. Other
options of a source are given with --option NAME=VALUE.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    ("path", "URL", "An archive (/folder, s3://bucket/prefix), or a folder of segments."),
    ("safekeepers", "HOST:PORT,...", "Read from these; with --path, only newer WAL."),
    ("timeline", "TENANT/TIMELINE", "Timeline to read; required if there are several."),
    ("start-lsn", "LSN", "Begin at this position, or at: earliest, latest."),
    ("start-time", "TIME", "Begin with the first transaction that committed at or after it."),
    ("end-lsn", "LSN", "End before this position."),
    ("end-time", "TIME", "End before the first transaction that committed at or after it."),
)


def wal_input_options(function: F) -> F:
    """Adds the options that `source_options()` reads."""
    return _decorated(function, [name for name, *_ in _OPTIONS])


def wal_end_options(function: F) -> F:
    """The options of a command that knows where its range begins."""
    return _decorated(function, ["path", "safekeepers", "timeline", "end-lsn"])


def _decorated(function: F, names: Sequence[str]) -> F:
    decorated = click.option(
        "--option",
        "other_options",
        multiple=True,
        metavar="NAME=VALUE",
        help="Another option of the source, such as rmgr=Heap or on_damage=skip (repeatable).",
    )(function)
    for name, metavar, text in reversed([each for each in _OPTIONS if each[0] in names]):
        decorated = click.option(f"--{name}", metavar=metavar, help=text)(decorated)
    return decorated


def source_options(values: dict[str, Any]) -> dict[str, str]:
    """The options of the source, which are removed from `values`. Raises click.UsageError."""
    names = [name.replace("-", "_") for name, _, _ in _OPTIONS]
    options = {name: values.pop(name, None) for name in names}
    for option in values.pop("other_options"):
        name, equals, value = option.partition("=")
        if not name or not equals:
            raise click.UsageError("--option needs NAME=VALUE")
        options[name] = value
    return {name: value for name, value in options.items() if value is not None}


def master_option(function: F) -> F:
    """--master, for `spark.session`."""
    return click.option(
        "--master",
        default="local[*]",
        show_default=True,
        metavar="URL",
        help="Where Spark runs: local[N], spark://HOST:PORT, k8s://..., yarn.",
    )(function)
