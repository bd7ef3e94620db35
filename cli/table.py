"""`sk table`: one table at a moment; needs `pip install 'quorum-wal[pageserver]'`."""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.pageserver import PageserverGroup


class TableGroup(PageserverGroup):
    """Of commands that read a pageserver's cuts."""

    modules: ClassVar = {"restore": "quorum_wal.cli.table_restore:restore"}


@click.group(cls=TableGroup)
def table() -> None:
    """One table, or one database, as it was at a moment, out of a pageserver's cuts.

    See docs/pageserver.md.
    """
