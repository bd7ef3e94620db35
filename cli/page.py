"""`sk page`: read, check and repair pages by the WAL; needs the extra `quorum-wal[pageserver]`."""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.pageserver import PageserverGroup


class PageGroup(PageserverGroup):
    """The commands that read pages from a pageserver's cuts."""

    modules: ClassVar = {
        "get": "quorum_wal.cli.page_get:get",
        "history": "quorum_wal.cli.page_history:history",
        "check": "quorum_wal.cli.page_check:check",
        "repair": "quorum_wal.cli.page_repair:repair",
    }


@click.group(cls=PageGroup)
def page() -> None:
    """Read, check and repair pages by a pageserver's cuts and the WAL.

    See docs/pageserver.md.
    """
