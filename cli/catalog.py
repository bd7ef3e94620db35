"""`sk catalog`: write the tables and types of a database to a file, to decode its WAL offline."""

from __future__ import annotations

from pathlib import Path

import click

from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import database_option, output_option
from quorum_wal.pgwal.lsn import Lsn


@click.group()
def catalog() -> None:
    """Write the tables and types of a database to a file, to decode WAL without the server."""


@catalog.command()
@database_option
@output_option
def snapshot(dsn: str, output: Path) -> None:
    """Write the catalog of a database to a file, over a normal connection.

    Reads only system catalogs, in one snapshot, and takes no locks on tables. Replaces an existing
    file atomically. TRUNCATE, VACUUM FULL and some forms of ALTER TABLE give a table a new file:
    take another snapshot then, and give both to pg_changes.
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
