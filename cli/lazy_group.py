"""Groups of commands. The module of a command is imported when the command is called."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import ClassVar

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A subclass lists the commands in `modules`."""

    #: name: the module and the command in it, in the order of the help
    modules: ClassVar[Mapping[str, str]] = {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.modules:
            return None
        module, _, name = self.modules[cmd_name].partition(":")
        command: click.Command = getattr(import_for_good(module), name)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes names without help, which would import the modules of all commands."""
        names = [name for name in self.modules if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name) for name in names] + options


def import_for_good(module: str) -> ModuleType:
    """Imports a module, and exempts its objects from garbage collection: they live as long as the
    process. Collecting them takes an eighth of a start, and later milliseconds between commits."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def configure_command_logs(context: click.Context) -> None:
    """Configures the log by --log-format and --log-level of `sk`."""
    # Imported here: the import takes as long as a short command.
    from quorum_wal.telemetry.logs import LogFormat, configure_logs

    options = context.find_root().params
    configure_logs(LogFormat(options["log_format"]), options["log_level"])
