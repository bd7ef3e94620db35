"""An option whose environment variable holds for all commands that have it.

Law: a variable of one command, as `SK_STATUS_SAFEKEEPERS`, takes precedence over that of all
commands, `SK_SAFEKEEPERS`. click has it the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


class SharedOption(click.Option):
    """Reads the variable of the command first."""

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        own = f"{ctx.auto_envvar_prefix}_{(self.name or '').upper()}"
        return os.environ.get(own) or super().resolve_envvar_value(ctx)


def shared_option(flag: str, variable: str, **settings: Any) -> Callable[[F], F]:
    """`click.option` with a variable of all commands; the other settings are those of click."""
    return click.option(flag, cls=SharedOption, envvar=variable, show_envvar=True, **settings)
