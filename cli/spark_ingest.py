"""`sk spark ingest`: ingest WAL into a Parquet lake, each record exactly once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.archive_options import parse_options as parse_store_options
from quorum_wal.cli.parameters import FiniteRange
from quorum_wal.cli.spark_session import command_session
from quorum_wal.cli.wal_input_options import master_option, source_options, wal_input_options
from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions
from quorum_wal.spark.jobs import compaction
from quorum_wal.spark.jobs.ingest import BATCH_BYTES_MAX, Ingest, IngestedRows, check_lake
from quorum_wal.spark.jobs.ingested_changes import IngestedChanges
from quorum_wal.spark.jobs.ingested_wal import IngestedWal
from quorum_wal.spark.jobs.lake import CommittedBatch, Lake, describe
from quorum_wal.spark.sources.input_options import parse_options
from quorum_wal.spark.sources.pg_changes_options import parse_undecoded, undecoded_options
from quorum_wal.telemetry.size import bytes_text
from quorum_wal.telemetry.stop_signal import StopSignal


@click.command()
@click.argument("lake", metavar="LAKE")
@wal_input_options
@click.option(
    "--lake-option",
    multiple=True,
    metavar="KEY=VALUE",
    help="Setting of the lake's store: endpoint=http://..., region=... (repeatable).",
)
@click.option(
    "--catalog",
    metavar="FILE",
    help="File of sk catalog snapshot: ingest the changes of its tables instead of WAL records.",
)
@click.option("--once", is_flag=True, help="Exit when all available WAL is ingested.")
@click.option(
    "--interval",
    type=FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to look for more WAL.",
)
@click.option(
    "--batch-bytes-max",
    type=click.IntRange(min=1 << 20),
    default=BATCH_BYTES_MAX,
    show_default=True,
    help="WAL in one batch.",
)
@click.option(
    "--compact/--no-compact",
    default=True,
    show_default=True,
    help="Merge the small files of each hour that is over; with --once, of every hour.",
)
@master_option
def ingest(
    lake: str,
    lake_option: tuple[str, ...],
    catalog: str | None,
    once: bool,
    interval: float,
    batch_bytes_max: int,
    compact: bool,
    master: str,
    **values: Any,
) -> None:
    """Ingest WAL records, or changes of tables, into LAKE, a folder or an object store.

    LAKE has Parquet files by date and hour. After an interruption or a crash the command continues
    where it stopped, and ingests each record exactly once. A LAKE belongs to one cluster.
    """
    rows = _rows(source_options(values), catalog, batch_bytes_max)
    stopping = StopSignal().install()
    url = lake if "://" in lake else str(Path(lake).absolute())
    lake_options = parse_store_options(lake_option)
    # Spark takes seconds to start: wrong settings are reported before.
    check_lake(Lake(open_store(url, lake_options)), rows)
    with command_session("sk spark ingest", master, registers=False) as session:
        job = Ingest(session, rows, url, lake_options)
        compaction.finish_compactions(job.lake.store)
        while not stopping.is_set:
            committed = job.run_batch()
            if committed is not None:
                click.echo(_line(committed))
                continue
            if compact:
                _compact(job, open_hours=once)
            if once:
                break
            stopping.wait(interval)


def _rows(options: dict[str, str], catalog: str | None, batch_bytes: int) -> IngestedRows:
    known = () if catalog is None else undecoded_options(options)
    parsed = parse_options(options, known=known, is_stream="slot" in options)
    if catalog is None:
        return IngestedWal(parsed, batch_bytes)
    changes = ChangeOptions(load_catalog(catalog), undecoded=parse_undecoded(options))
    return IngestedChanges(parsed, batch_bytes, changes=changes)


def _compact(job: Ingest, open_hours: bool) -> None:
    for plan in compaction.plan_compactions(job.lake.store, open_hours):
        compaction.compact(job.lake.store, plan)
        click.echo(f"compacted {len(plan.inputs)} files into {plan.output}")


def _line(committed: CommittedBatch) -> str:
    batch, files = committed.batch, committed.files
    rows, size = sum(file.rows for file in files), sum(file.bytes for file in files)
    return f"{describe(batch)}: {rows:,} rows in {len(files)} files, {bytes_text(size)}"
