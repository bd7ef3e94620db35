"""`sk catalog`: what the tables of a database are, for those who decode its WAL without it."""

from __future__ import annotations

from pathlib import Path

import click

from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import database_option, output_option
from quorum_wal.pgwal.lsn import Lsn


@click.group()
def catalog() -> None:
    """Tables and types of a database, in a file: to decode its WAL without the server."""


@catalog.command()
@database_option
@output_option
def snapshot(dsn: str, output: Path) -> None:
    """Write the catalog of a database to a file, over a normal connection.

    It reads system catalogs only, in one snapshot, and locks nothing. A file that is there already
    is replaced as a whole. TRUNCATE, VACUUM FULL and some ALTER TABLE give a table a new file: take
    another one then, and give both to pg_changes.
    """
    from quorum_wal.spark.changes.catalog_snapshot import take_catalog

    taken = take_catalog(dsn)
    beside = output.with_name(f"{output.name}.new")
    try:
        beside.write_bytes(taken.to_json())
        beside.replace(output)
    except OSError as error:
        raise CommandError(f"could not write {output}: {error.strerror}") from error
    click.echo(
        f"{len(taken.tables):,} tables of {taken.database_name} at {Lsn(taken.lsn)} in {output}"
    )
