"""`sk page`: read, check and repair pages by the WAL; needs the extra `quorum-wal[pageserver]`."""

from __future__ import annotations

from typing import ClassVar

import click

from cli.pageserver import PageserverGroup


class PageGroup(PageserverGroup):
    """The commands that read pages from a pageserver's cuts."""

    modules: ClassVar = {
        "get": "cli.page_get:get",
        "history": "cli.page_history:history",
        "check": "cli.page_check:check",
        "repair": "cli.page_repair:repair",
    }


@click.group(cls=PageGroup)
def page() -> None:
    """Read, check and repair pages by a pageserver's cuts and the WAL.

    See docs/pageserver.md.
    """
