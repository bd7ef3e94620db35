"""`sk catalog`: write the tables and types of a database to a file, to decode its WAL offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import database_option, output_option
from quorum_wal.cli.wal_input_options import source_options, wal_end_options
from quorum_wal.pgwal.lsn import Lsn

if TYPE_CHECKING:
    from quorum_wal.spark.changes.catalog import Catalog


@click.group()
def catalog() -> None:
    """Write the tables and types of a database to a file, to decode WAL without the server."""


@catalog.command()
@database_option
@output_option
def snapshot(dsn: str, output: Path) -> None:
    """Write the catalog of a database to a file, over a normal connection.

    Reads only system catalogs, in one snapshot, and takes no locks on tables. Replaces an existing
    file atomically. pg_changes follows later changes of tables in the WAL.
    """
    from quorum_wal.spark.changes.catalog_snapshot import take_catalog

    _write(take_catalog(dsn), output)


@catalog.command()
@click.argument("file", metavar="FILE")
@wal_end_options
@output_option
def advance(file: str, output: Path, **values: Any) -> None:
    """Advance a catalog FILE to a later position, from the WAL alone.

    Follows the changes of tables in the WAL from the position of FILE to --end-lsn, or to the end
    of the WAL, and writes the catalog of that position. The older WAL is then not needed any more
    to start a query.
    """
    from quorum_wal.spark.changes.catalog import load_catalog
    from quorum_wal.spark.changes.schema_search import SchemaSearch
    from quorum_wal.spark.errors import CatalogError
    from quorum_wal.spark.sources.input_options import parse_options

    options = parse_options(source_options(values))
    old = load_catalog(file)
    if old.rows is None:
        raise CatalogError(
            f"catalog {file} has no rows of the system catalogs, so it cannot be advanced",
            hint="Take a new one with sk catalog snapshot.",
        )
    wal_input = options.wal_input
    newest_lsn = wal_input.newest_lsn()
    end_lsn = newest_lsn if options.end_lsn is None else options.end_lsn
    if not old.lsn <= end_lsn <= newest_lsn:
        raise CatalogError(
            f"the catalog cannot be advanced to {Lsn(end_lsn)}: it was taken at {Lsn(old.lsn)}, "
            f"and the WAL ends at {Lsn(newest_lsn)}",
            hint="Choose a position between both.",
        )
    _write(SchemaSearch(wal_input, old, options.on_damage).advance(end_lsn, newest_lsn), output)


def _write(taken: Catalog, output: Path) -> None:
    """Replaces a file. What is no regular file is written to, as /dev/stdout."""
    beside = output.with_name(f"{output.name}.new")
    try:
        is_replaced = not output.is_symlink() and (output.is_file() or not output.exists())
        (beside if is_replaced else output).write_bytes(taken.to_json())
        if is_replaced:
            beside.replace(output)
    except OSError as error:
        raise CommandError(f"could not write {output}: {error.strerror}") from error
    click.echo(
        f"{len(taken.tables):,} tables of {taken.database_name} at {Lsn(taken.lsn)} in {output}"
    )
