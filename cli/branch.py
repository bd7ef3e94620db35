"""`sk branch`: writable copies of the cluster as of a moment.

Needs `pip install 'quorum-wal[pageserver]'`.
"""

from __future__ import annotations

from typing import ClassVar

import click

from quorum_wal.cli.pageserver import PageserverGroup


class BranchGroup(PageserverGroup):
    """The commands for the branches in a folder."""

    modules: ClassVar = {
        "create": "quorum_wal.cli.branch_create:create",
        "list": "quorum_wal.cli.branch_list:list_branches",
        "start": "quorum_wal.cli.branch_server:start",
        "stop": "quorum_wal.cli.branch_server:stop",
        "drop": "quorum_wal.cli.branch_server:drop",
    }


@click.group(cls=BranchGroup)
def branch() -> None:
    """Create and run branches: writable servers as of a moment, made of a pageserver's cuts.

    See docs/pageserver.md.
    """
