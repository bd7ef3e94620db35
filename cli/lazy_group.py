"""Groups of commands whose modules are imported when they are called."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import ClassVar

import click
from click.shell_completion import CompletionItem


class LazyGroup(click.Group):
    """A subclass says which commands there are."""

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
        """Names alone: the help of each command would import the modules of all."""
        names = [name for name in self.modules if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [CompletionItem(name) for name in names] + options


def import_for_good(module: str) -> ModuleType:
    """What an import makes lives as long as the process. To look through it for garbage takes an
    eighth of a start, and milliseconds between two commits later."""
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.enable()


def configure_command_logs(context: click.Context) -> None:
    """As the options of `sk` itself say."""
    from quorum_wal.telemetry.logs import (  # it takes as long as a short command
        LogFormat,
        configure_logs,
    )

    options = context.find_root().params
    configure_logs(LogFormat(options["log_format"]), options["log_level"])
