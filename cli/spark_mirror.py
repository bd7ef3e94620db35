"""`sk spark mirror`: copies of tables that follow the WAL, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.archive_options import parse_options as parse_store_options
from quorum_wal.cli.parameters import Dsn, FiniteRange
from quorum_wal.cli.spark_session import command_session
from quorum_wal.cli.wal_input_options import (
    master_option,
    mirror_source_options,
    source_options,
)
from quorum_wal.spark.mirror.mirror import AppliedBatch
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.mirror.selection import Selection
from quorum_wal.spark.mirror.version import TableFormat, describe
from quorum_wal.telemetry.stop_signal import StopSignal

#: tries each task four times, as a cluster does
LOCAL = "local[*,4]"


@click.command()
@click.option("--into", required=True, metavar="URL", help="Folder or object store of the mirror.")
@mirror_source_options
@click.option(
    "--dsn",
    type=Dsn(),
    help="Server of the initial snapshot: the primary, a standby, or a restored server in paused "
    "recovery. Not needed again.",
)
@click.option(
    "--table",
    "include",
    multiple=True,
    metavar="PATTERN",
    help="Tables to mirror, as SCHEMA.TABLE with * and ? (repeatable). Default: all.",
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Tables to leave out (repeatable)."
)
@click.option(
    "--format",
    "table_format",
    type=click.Choice([each.value for each in TableFormat]),
    default="parquet",
    show_default=True,
    help="Format of the tables.",
)
@click.option("--text", is_flag=True, help="Store all values as text, as Postgres prints them.")
@click.option(
    "--into-option",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the mirror's store: endpoint=http://..., region=... (repeatable).",
)
@click.option("--once", is_flag=True, help="Exit when all available WAL is applied.")
@click.option(
    "--interval",
    type=FiniteRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to apply new WAL.",
)
@master_option
def mirror(
    into: str,
    dsn: str | None,
    include: tuple[str, ...],
    exclude: tuple[str, ...],
    table_format: str,
    text: bool,
    into_option: tuple[str, ...],
    once: bool,
    interval: float,
    master: str,
    **values: Any,
) -> None:
    """Copy tables and apply all later changes from the WAL, each transaction exactly once.

    The first start copies the tables from --dsn. After an interruption or a crash the command
    continues where it stopped. Readers see all tables at the same commit.
    """
    settings = MirrorSettings(
        url=into if "://" in into else str(Path(into).absolute()),
        source=source_options(values),
        dsn=dsn,
        selection=Selection(tuple(sorted(include)), tuple(sorted(exclude))),
        store_options=parse_store_options(into_option),
        is_text=text,
        table_format=TableFormat(table_format),
    )
    stopping = StopSignal().install()
    stream = MirrorStream(settings)
    version, is_new = stream.begin()
    if is_new:
        rows = sum(table.rows for table in version.tables)
        click.echo(f"snapshot of {len(version.tables):,} tables with {rows:,} rows")
    with command_session("sk spark mirror", LOCAL if master == "local[*]" else master) as session:
        stream.run(
            session,
            interval=None if once else interval,
            on_applied=lambda applied: click.echo(_line(applied)),
            is_stopping=lambda: stopping.is_set,
        )


def _line(applied: AppliedBatch) -> str:
    at = applied.version.commit_time
    moment = "" if at is None else f", {at:%Y-%m-%d %H:%M:%S} UTC"
    return f"{describe(applied.version)}{moment}: {applied.rows:,} changes"
