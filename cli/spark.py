"""`sk spark`: analyse WAL with Spark; needs `pip install 'quorum-wal[spark]'`."""

from __future__ import annotations

from importlib.util import find_spec
from typing import ClassVar

import click

from quorum_wal.cli.lazy_group import LazyGroup, configure_command_logs
from quorum_wal.cli.output import CommandError


class SparkGroup(LazyGroup):
    """One module per command. A module is imported only after its packages were found."""

    modules: ClassVar = {
        "ingest": "quorum_wal.cli.spark_ingest:ingest",
        "mirror": "quorum_wal.cli.spark_mirror:mirror",
        "report": "quorum_wal.cli.spark_report:report",
        "base": "quorum_wal.cli.spark_table:base",
        "replay-table": "quorum_wal.cli.spark_table:replay_table",
    }

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        missing = [name for name in ("pyspark", "pyarrow", "numba") if find_spec(name) is None]
        if missing and cmd_name in self.modules:
            raise CommandError(
                f"sk spark needs packages that are not installed: {', '.join(missing)}",
                hint="pip install 'quorum-wal[spark]'",
            )
        return super().get_command(ctx, cmd_name)


@click.group(cls=SparkGroup)
@click.pass_context
def spark(context: click.Context) -> None:
    """Ingest WAL into a lake, mirror tables, report what writes WAL, and replay a table."""
    configure_command_logs(context)
