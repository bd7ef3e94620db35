"""`sk pageserver`: make pages from the WAL; needs `pip install 'quorum-wal[pageserver]'`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

import click

from quorum_wal.cli.lazy_group import LazyGroup
from quorum_wal.cli.output import CommandError
from quorum_wal.cli.restorable_cuts import NEEDED_PACKAGES


class PageserverGroup(LazyGroup):
    """One module per command. A module is imported only after its packages were found."""

    modules: ClassVar = {
        "run": "quorum_wal.cli.pageserver_run:run",
        "status": "quorum_wal.cli.pageserver_status:status",
        "delete-timeline": "quorum_wal.cli.pageserver_deletion:delete_timeline",
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        missing = [name for name in NEEDED_PACKAGES if find_spec(name) is None]
        if missing and cmd_name == "run":
            raise CommandError(
                f"sk pageserver run needs packages that are not installed: {', '.join(missing)}",
                hint="pip install 'quorum-wal[pageserver]'",
            )
        return super().get_command(ctx, cmd_name)


@click.group(cls=PageserverGroup)
def pageserver() -> None:
    """Make pages from the WAL, and so full backups without load on the primary.

    See docs/pageserver.md.
    """
