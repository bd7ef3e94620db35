"""`sk spark report`: report what writes the WAL, as tables and as an HTML file with plots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from quorum_wal.cli.output import console, plain_table, print_json
from quorum_wal.cli.parameters import json_option
from quorum_wal.cli.spark_session import command_session
from quorum_wal.cli.wal_input_options import master_option, source_options, wal_input_options
from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.jobs.relation_names import RelationNames, relation_names
from quorum_wal.spark.jobs.report import COLUMNS, Answer, Report
from quorum_wal.spark.jobs.report import report as make_report
from quorum_wal.spark.jobs.report_page import cell, heading, page, summary_lines, times
from quorum_wal.spark.sources.input_options import parse_options

#: options that select some of the records
_FILTERS = frozenset({"rmgr", "relation", "database", "xid"})


@click.command()
@wal_input_options
@click.option(
    "--catalog",
    "catalogs",
    multiple=True,
    metavar="FILE",
    help="File of sk catalog snapshot: names of a database and its relations (repeatable).",
)
@click.option(
    "--html",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    help="Also write the report as one HTML file with plots, which needs no network.",
)
@json_option
@master_option
def report(
    catalogs: tuple[str, ...], html: Path | None, json: bool, master: str, **values: Any
) -> None:
    """Report the WAL by resource managers, relations, transactions, checkpoints and hot blocks.

    The first sentence says who writes the WAL, and what would reduce it, as far as the WAL shows.
    Bytes are the bytes of records, as pg_waldump --stats counts them.
    """
    options = source_options(values)
    known = [load_catalog(catalog) for catalog in catalogs]
    with command_session("sk spark report", master) as session:
        wal = session.read.format("pg_wal").options(**options)
        frame = wal.option("columns", ",".join(COLUMNS)).load()
        source = options.get("path") or "the safekeepers"
        names = RelationNames()
        if known:
            names = relation_names(known, parse_options(options).wal_input.facts().system_id)
        made = make_report(session, frame, source, names, _is_filtered(options))
    if json:
        print_json(made.as_json())
    else:
        _print(made)
    if html is not None:
        html.write_text(page(made), encoding="utf-8")
        click.echo(f"written to {html}", err=True)


def _is_filtered(options: dict[str, str]) -> bool:
    """Whether the options select records, not only a range. Names of options have any case."""
    return not _FILTERS.isdisjoint(name.lower() for name in options)


def _print(report: Report) -> None:
    click.echo(f"{report.headline.text}\n")
    for name, value in summary_lines(report):
        click.echo(f"{name:<18}{value}")
    for name, answer in report.answers.items():
        if name == "minutes":
            answer = times(answer)
        click.echo(f"\n{answer.title}")
        click.echo(f"  {answer.meaning}")
        console().print(_table(answer))


def _table(answer: Answer) -> Table:
    table = plain_table(*(heading(column) for column in answer.columns))
    for row in answer.rows:
        cells = zip(row, answer.columns, strict=True)
        table.add_row(*(cell(value, column) for value, column in cells))
    return table
