"""The config file: TOML with a table per command; each key is the name of an option.

    log-level = "warning"                  an option of `sk` itself

    [safekeeper.run]
    id = 1
    data-dir = "/var/lib/sk"               dashes or underscores

Law: an unknown key is an error that names the key, so that no typing error is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

# Options that make no sense in a file.
_FLAGS_ONLY = {"help", "version", "config"}


def load_config(
    context: click.Context, _: click.Parameter, path: Path | None
) -> Path | None:  # the callback of --config, which is eager: other options look into default_map
    """Use the file for the defaults of all commands. Raises click.UsageError."""
    if path is not None:
        context.default_map = read_config(path, context.command, context)
    return path


def read_config(path: Path, command: click.Command, context: click.Context) -> dict[str, Any]:
    """Returns the file as click's default_map. Raises click.UsageError."""
    import tomllib  # imported here, because most commands run without a file

    try:
        table = tomllib.loads(path.read_text())
    except (
        OSError,
        ValueError,
        RecursionError,
    ) as error:  # also for too long numbers, too deep tables
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f'could not read config file "{path}": {reason}') from error
    try:
        return _defaults(table, command, context, "")
    except _Misplaced as error:
        raise click.UsageError(f'config file "{path}": {error}') from error


class _Misplaced(Exception):
    """A key that is unknown, or has a value of the wrong type."""


def _defaults(
    table: Mapping[str, Any], command: click.Command, context: click.Context, prefix: str
) -> dict[str, Any]:
    """The defaults in one table. `prefix`, for messages, is the name of the table and a dot."""
    options = _options(command)
    defaults: dict[str, Any] = {}
    for key, value in table.items():
        option = options.get(key.replace("_", "-"))
        subcommand = None
        if option is None and isinstance(command, click.Group):
            subcommand = command.get_command(context, key)
        if subcommand is not None:
            if not isinstance(value, dict):
                raise _Misplaced(f'"{prefix}{key}" is a command, expected a table')
            defaults[key] = _defaults(value, subcommand, context, f"{prefix}{key}.")
        elif option is None or option.name is None:
            raise _Misplaced(f'unknown key "{prefix}{key}"')
        else:
            defaults[option.name] = _option_value(value, option, prefix + key)
    return defaults


def _options(command: click.Command) -> dict[str, click.Option]:
    """The options of a command by the names of their flags, without the leading dashes."""
    return {
        flag.removeprefix("--"): parameter
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for flag in parameter.opts
        if flag.startswith("--") and flag.removeprefix("--") not in _FLAGS_ONLY
    }


def _option_value(value: Any, option: click.Option, name: str) -> Any:
    """The value as it is written on the command line; a list becomes A,B,C."""
    if option.is_flag:
        if not isinstance(value, bool):
            raise _Misplaced(f'"{name}" must be true or false')
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return ",".join(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise _Misplaced(f'"{name}" must be a string or a number')
    try:
        return str(value)
    except ValueError as error:  # a hexadecimal number may have any length
        raise _Misplaced(f'"{name}" is too long a number') from error
