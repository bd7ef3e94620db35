"""`sk table`: restore one table as of a moment; needs `pip install 'quorum-wal[pageserver]'`."""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.pageserver import PageserverGroup


class TableGroup(PageserverGroup):
    """The commands that read tables from a pageserver's cuts."""

    modules: ClassVar = {"restore": "quorum_wal.cli.table_restore:restore"}


@click.group(cls=TableGroup)
def table() -> None:
    """Restore one table or one database as of a moment, from a pageserver's cuts.

    See docs/pageserver.md.
    """
