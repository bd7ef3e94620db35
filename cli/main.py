"""`sk`: the group of all commands, and what they share: config file, environment, logs, errors.

Every option can be given as a flag, as an environment variable (`SK_<COMMAND>_<OPTION>`), or in a
TOML file (`config_file.py`); in this order of precedence. A command's module is imported when the
command is called, so that a safekeeper does not carry what `sk demo` needs.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import click

from cli.config_file import load_config
from cli.output import LIBRARY_ERRORS, command_error
from telemetry.logs import LogFormat, configure_logs

#: name: the module and the command in it, in the order of the help.
COMMANDS = {
    "safekeeper": "cli.safekeeper:safekeeper",
    "user": "cli.user:user",
    "attach": "cli.attach:attach",
    "detach": "cli.attach:detach",
    "status": "cli.status:status",
    "check": "cli.check:check",
    "timeline": "cli.timeline:timeline",
    "elect": "cli.elect:elect",
    "promote": "cli.promote:promote",
    "rejoin": "cli.rejoin:rejoin",
    "dev": "cli.dev:dev",
    "demo": "cli.demo:demo",
}


class SkGroup(click.Group):
    """Imports the commands when they are needed, and ends them with one sentence on an error."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LIBRARY_ERRORS as error:
            raise command_error(error) from error


@click.group(cls=SkGroup, context_settings={"auto_envvar_prefix": "SK", "max_content_width": 100})
@click.version_option(package_name="quorum-wal", prog_name="sk")
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=load_config,
    help="TOML file with a table per command.",
)
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
def cli(log_format: str, log_level: str) -> None:
    """Quorum-durable WAL for an unmodified Postgres."""
    configure_logs(LogFormat(log_format), log_level)


def main() -> None:
    """The console script."""
    cli(prog_name="sk")


if __name__ == "__main__":
    main()
