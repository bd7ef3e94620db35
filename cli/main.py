"""`sk`: the group of all commands, with the config file, environment, logs and errors they share.

Every option can be given as a flag, as an environment variable (`SK_<COMMAND>_<OPTION>`), or in a
TOML file (`config_file.py`), in this order of precedence. The module of a command is imported when
the command is called, so that a safekeeper does not load the modules of `sk demo`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.config_file import load_config
from quorum_wal.cli.lazy_group import LazyGroup, configure_command_logs, import_for_good
from quorum_wal.cli.output import LIBRARY_ERRORS, CommandError, ExitCode, command_error
from quorum_wal.storage.errors import FULL_DISK

#: name: the module and the command in it, in the order of the help.
COMMANDS = {
    "safekeeper": "quorum_wal.cli.safekeeper:safekeeper",
    "user": "quorum_wal.cli.user:user",
    "attach": "quorum_wal.cli.attach:attach",
    "detach": "quorum_wal.cli.attach:detach",
    "status": "quorum_wal.cli.status:status",
    "check": "quorum_wal.cli.check:check",
    "timeline": "quorum_wal.cli.timeline:timeline",
    "member": "quorum_wal.cli.member:member",
    "elect": "quorum_wal.cli.elect:elect",
    "promote": "quorum_wal.cli.promote:promote",
    "rejoin": "quorum_wal.cli.rejoin:rejoin",
    "qsync": "quorum_wal.cli.qsync:qsync",
    "archive": "quorum_wal.cli.archive:archive",
    "backup": "quorum_wal.cli.backup:backup",
    "restore": "quorum_wal.cli.restore:restore",
    "table": "quorum_wal.cli.table:table",
    "page": "quorum_wal.cli.page:page",
    "branch": "quorum_wal.cli.branch:branch",
    "pageserver": "quorum_wal.cli.pageserver:pageserver",
    "generations": "quorum_wal.cli.generations:generations",
    "catalog": "quorum_wal.cli.catalog:catalog",
    "spark": "quorum_wal.cli.spark:spark",
    "dev": "quorum_wal.cli.dev:dev",
    "demo": "quorum_wal.cli.demo:demo",
    "completion": "quorum_wal.cli.completion:completion",
}


#: Commits wait while one of these starts, so they import only the modules that they need.
SERVICES = ("safekeeper", "attach", "promote")


class SkGroup(LazyGroup):
    """Reports the errors of the libraries as one sentence."""

    modules = COMMANDS

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in SERVICES:
            # Before structlog is imported, and so rich.
            import_for_good("quorum_wal.telemetry.logs")
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except LIBRARY_ERRORS as error:
            raise command_error(error) from error
        except OSError as error:
            if error.errno in FULL_DISK:
                raise CommandError(
                    f"could not write a file: {error.strerror}",
                    "Free some space, or specify folders on another disk.",
                ) from error
            if error.filename is None:
                raise
            raise CommandError(f'could not use "{error.filename}": {error.strerror}') from error


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
    try:
        cli(prog_name="sk")
    except click.ClickException:  # click shows all others: of a completion there is none
        sys.exit(ExitCode.FAILED)


if __name__ == "__main__":
    main()
