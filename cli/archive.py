"""`sk archive`: show, verify and prune an archive, and fetch WAL from it for a recovery."""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.lazy_group import LazyGroup, configure_command_logs


class ArchiveGroup(LazyGroup):
    """One module per command: Postgres runs `fetch` once per segment, so it must start fast."""

    modules: ClassVar = {
        "status": "quorum_wal.cli.archive_contents:status",
        "ls": "quorum_wal.cli.archive_contents:list_wal",
        "verify": "quorum_wal.cli.archive_verify:verify",
        "prune": "quorum_wal.cli.archive_prune:prune",
        "fetch": "quorum_wal.cli.archive_fetch:fetch",
    }


@click.group(cls=ArchiveGroup)
@click.pass_context
def archive(context: click.Context) -> None:
    """Show, verify and prune the archive, and fetch WAL from it."""
    if context.invoked_subcommand != "fetch":
        configure_command_logs(context)
