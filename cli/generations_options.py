"""Options of the commands that need generation numbers, from a service or from a database."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from quorum_wal.cli.listening import PATH
from quorum_wal.generations.client import GenerationClient
from quorum_wal.generations.operations import embedded_generations
from quorum_wal.generations.protocol import GenerationService

F = TypeVar("F", bound=Callable[..., Any])

_SCHEMES = ("http://", "https://")


def generations_options(*, default: str = "") -> Callable[[F], F]:
    """--generations with its token and CA. It is required unless `default` is given."""

    def decorate(function: F) -> F:
        said = f" [default: {default}]" if default else ""
        named = click.option(
            "--generations",
            metavar="URL|DATABASE",
            required=not default,
            help="The generation service, http://... or https://...; or a database to use "
            f"directly.{said}",
        )
        token = click.option(
            "--generations-token-file", type=PATH, help="File with the token of that service."
        )
        authority = click.option(
            "--generations-ca-file", type=PATH, help="CA of the service's certificate."
        )
        return named(token(authority(function)))

    return decorate


def is_service(named: str | None) -> bool:
    """Whether --generations names a service, not a database."""
    return bool(named) and str(named).startswith(_SCHEMES)


def open_generations(options: dict[str, Any], own: Path | None = None) -> GenerationService:
    """The service or database that --generations names. Without it the database `own`, which is
    created if it does not exist. Raises GenerationError, click.UsageError."""
    named = options["generations"]
    if named is not None and is_service(named):
        return GenerationClient(
            named,
            token_file=options["generations_token_file"],
            ca_file=options["generations_ca_file"],
        )
    if options["generations_token_file"] or options["generations_ca_file"]:
        raise click.UsageError(
            "--generations-token-file and --generations-ca-file need --generations URL"
        )
    return embedded_generations(named or str(own), create=own is not None)
