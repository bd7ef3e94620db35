"""`sk page`: pages as the WAL says they are; needs `pip install 'quorum-wal[pageserver]'`."""

from __future__ import annotations

from typing import ClassVar

import click

from cli.pageserver import PageserverGroup


class PageGroup(PageserverGroup):
    """Of commands that read a pageserver's cuts."""

    modules: ClassVar = {
        "get": "cli.page_get:get",
        "history": "cli.page_history:history",
        "check": "cli.page_check:check",
        "repair": "cli.page_repair:repair",
    }


@click.group(cls=PageGroup)
def page() -> None:
    """Pages as they were at a moment, and as they should be, out of a pageserver's cuts.

    See docs/pageserver.md.
    """
