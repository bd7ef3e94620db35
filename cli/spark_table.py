"""`sk spark base` and `sk spark replay-table`: make a table of the past from its changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.parameters import database_option, output_option
from quorum_wal.cli.spark_session import command_session
from quorum_wal.cli.wal_input_options import master_option, source_options, wal_input_options
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.undecoded_rows import OnUnknown
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.jobs.replay_table import replay_table as replay
from quorum_wal.spark.jobs.table_base import read_base, take_base
from quorum_wal.spark.sources.pg_changes_options import undecoded_options


@click.command()
@click.argument("table", metavar="SCHEMA.TABLE")
@database_option
@output_option
def base(table: str, dsn: str, output: Path) -> None:
    """Write a snapshot of a table to a file, from which sk spark replay-table starts.

    Waits until the transactions that run now have ended.
    """
    rows = take_base(dsn, table, output)
    click.echo(f"{rows:,} rows of {table} at {format_lsn(read_base(output).lsn)}")


@click.command("replay-table")
@click.argument("output", metavar="FOLDER")
@wal_input_options
@click.option(
    "--base",
    "base_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="File of sk spark base.",
)
@click.option("--catalog", metavar="FILE", required=True, help="File of sk catalog snapshot.")
@master_option
def replay_table(output: str, base_file: Path, catalog: str, master: str, **values: Any) -> None:
    """Write a table, as of --end-lsn, --end-time or now, to a FOLDER of Parquet files.

    Numbers and booleans keep their types. All other values are text, as Postgres prints them in
    JSON.
    """
    found, known = read_base(base_file), load_catalog(catalog)
    table = known.table_named(found.table)
    options = {"start_lsn": format_lsn(found.lsn), **source_options(values)}
    for name in undecoded_options(options):
        raise OptionError(
            f"option {name} is not for replay-table",
            hint="It fails if a change of its table could not be decoded.",
        )
    # The replay looks at all rows: only those of its table that the base did not see concern it.
    options["on_unknown"] = OnUnknown.PASS.value
    with command_session("sk spark replay-table", master) as session:
        changes = session.read.format("pg_changes").options(catalog=catalog, **options).load()
        replayed = replay(session, base_file, changes, table, Datums(known.types))
        replayed.frame.write.parquet(output)
        rows = session.read.parquet(output).count()
    click.echo(f"{rows:,} rows of {table} written to {output}")
