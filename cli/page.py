"""`sk page`: pages as the WAL says they are; needs `pip install 'quorum-wal[pageserver]'`."""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.pageserver import PageserverGroup


class PageGroup(PageserverGroup):
    """Of commands that read a pageserver's cuts."""

    modules: ClassVar = {
        "get": "quorum_wal.cli.page_get:get",
        "history": "quorum_wal.cli.page_history:history",
        "check": "quorum_wal.cli.page_check:check",
        "repair": "quorum_wal.cli.page_repair:repair",
    }


@click.group(cls=PageGroup)
def page() -> None:
    """Pages as they were at a moment, and as they should be, out of a pageserver's cuts.

    See docs/pageserver.md.
    """
