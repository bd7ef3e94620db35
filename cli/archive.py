"""`sk archive`: what is in the archive, whether it is sound, and WAL out of it for a restore."""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.lazy_group import LazyGroup, configure_command_logs


class ArchiveGroup(LazyGroup):
    """One module each: `fetch` runs once for every segment of a recovery, and must start fast."""

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
    """Look into the archive, prove that it is sound, shorten it, and restore from it."""
    if context.invoked_subcommand != "fetch":
        configure_command_logs(context)
