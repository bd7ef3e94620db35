"""`sk`: the group of all commands, and what they share: config file, environment, logs.

Every option can be given as a flag, as an environment variable (`SK_<COMMAND>_<OPTION>`), or in a
TOML file with a table per command; in this order of precedence.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import click

from cli.attach import attach, detach
from cli.safekeeper import safekeeper
from telemetry.logs import LogFormat, configure_logs


def _read_config(path: Path) -> dict[str, Any]:
    """The TOML file as click's default_map: tables are commands, dashes may be underscores."""
    try:
        return _with_underscores(tomllib.loads(path.read_text()))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise click.UsageError(f'could not read config file "{path}": {error}') from error


def _with_underscores(table: dict[str, Any]) -> dict[str, Any]:
    return {
        key.replace("-", "_") if not isinstance(value, dict) else key: _with_underscores(value)
        if isinstance(value, dict)
        else value
        for key, value in table.items()
    }


@click.group(context_settings={"auto_envvar_prefix": "SK", "max_content_width": 100})
@click.version_option(package_name="quorum-wal", prog_name="sk")
@click.option("--config", type=click.Path(path_type=Path), help="TOML file with a table a command.")
@click.option(
    "--log-format",
    type=click.Choice([f.value for f in LogFormat]),
    default=LogFormat.TEXT.value,
    show_default=True,
    help="Logs on stderr, for people or for machines.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="The least important events to log.",
)
@click.pass_context
def cli(context: click.Context, config: Path | None, log_format: str, log_level: str) -> None:
    """Quorum-durable WAL for an unmodified Postgres."""
    configure_logs(LogFormat(log_format), log_level)
    if config is not None:
        context.default_map = _read_config(config)


for command in (safekeeper, attach, detach):
    cli.add_command(command)


def main() -> None:
    """The console script."""
    cli(prog_name="sk")


if __name__ == "__main__":
    main()
