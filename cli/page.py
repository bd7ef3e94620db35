"""`sk page`: one page at a moment; needs `pip install 'quorum-wal[pageserver]'`."""

from __future__ import annotations

from typing import ClassVar

import click

from cli.pageserver import PageserverGroup


class PageGroup(PageserverGroup):
    """Of commands that read a pageserver's cuts."""

    modules: ClassVar = {"get": "cli.page_get:get"}


@click.group(cls=PageGroup)
def page() -> None:
    """One page as it was at a moment, out of a pageserver's cuts.

    See docs/pageserver.md.
    """
