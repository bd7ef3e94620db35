"""`sk`: the group of all commands, with the config file, environment, logs and errors they share.

Every option can be given as a flag, as an environment variable (`SK_<COMMAND>_<OPTION>`), or in a
TOML file (`config_file.py`), in this order of precedence. The module of a command is imported when
the command is called, so that a safekeeper does not load the modules of `sk demo`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from cli.config_file import load_config
from cli.lazy_group import LazyGroup, configure_command_logs, import_for_good
from cli.output import LIBRARY_ERRORS, command_error

#: name: the module and the command in it, in the order of the help.
COMMANDS = {
    "safekeeper": "cli.safekeeper:safekeeper",
    "user": "cli.user:user",
    "attach": "cli.attach:attach",
    "detach": "cli.attach:detach",
    "status": "cli.status:status",
    "check": "cli.check:check",
    "timeline": "cli.timeline:timeline",
    "member": "cli.member:member",
    "elect": "cli.elect:elect",
    "promote": "cli.promote:promote",
    "rejoin": "cli.rejoin:rejoin",
    "qsync": "cli.qsync:qsync",
    "archive": "cli.archive:archive",
    "backup": "cli.backup:backup",
    "restore": "cli.restore:restore",
    "table": "cli.table:table",
    "page": "cli.page:page",
    "branch": "cli.branch:branch",
    "pageserver": "cli.pageserver:pageserver",
    "generations": "cli.generations:generations",
    "catalog": "cli.catalog:catalog",
    "spark": "cli.spark:spark",
    "dev": "cli.dev:dev",
    "demo": "cli.demo:demo",
}


#: Commits wait while one of these starts, so they import only the modules that they need.
SERVICES = ("safekeeper", "attach", "promote")


class SkGroup(LazyGroup):
    """Reports the errors of the libraries as one sentence."""

    modules = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SERVICES:
            import_for_good("telemetry.logs")  # before structlog is imported, and so rich
        return super().get_command(ctx, cmd_name)

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
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log on stderr.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Lowest level of the events to log.",
)
@click.pass_context
def cli(context: click.Context, log_format: str, log_level: str) -> None:
    """Quorum-durable WAL for an unmodified Postgres."""
    if context.invoked_subcommand != "archive":  # it configures them itself if it logs
        configure_command_logs(context)


def main() -> None:
    """The console script."""
    cli(prog_name="sk")


if __name__ == "__main__":
    main()
