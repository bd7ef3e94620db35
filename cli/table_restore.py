"""`sk table restore`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.moment_options import binaries_of, moment_of, moment_options, wal_sources
from quorum_wal.cli.parameters import Dsn, live_safekeepers_option, timeline_option
from quorum_wal.cli.restore_target import Omitted, RestoreTarget
from quorum_wal.objectstore.archive import require_archive
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.pitr.restore_point import RestorePoint
from quorum_wal.pageserver.pitr.restore_points import RestorePoints
from quorum_wal.pageserver.pitr.restored_table import DumpFormat
from quorum_wal.pageserver.pitr.sparse_restore import Restored, SparseRestore
from quorum_wal.pageserver.pitr.table_name import TableName
from quorum_wal.pg_server.account import server_account
from quorum_wal.pg_server.binaries import PostgresBinaries
from quorum_wal.pgwal.lsn import format_lsn


@click.command()
@archive_options()
@timeline_option
@live_safekeepers_option
@click.argument("name", metavar="DATABASE.SCHEMA.TABLE")
@click.option(
    "--database", is_flag=True, help="Restore a whole database; the argument is its name."
)
@moment_options
@click.option("--to", type=Dsn(), help="Restore into this database, which must not have the table.")
@click.option(
    "--dump",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write a new file in the format of pg_dump: custom if it is named .dump, else plain.",
)
@click.option(
    "--copy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the rows to a new CSV file.",
)
@click.option(
    "--no-owner", is_flag=True, help="As in pg_restore: do not restore the owners of the objects."
)
@click.option(
    "--no-privileges", is_flag=True, help="As in pg_restore: do not restore GRANT and REVOKE."
)
def restore(**options: Any) -> None:
    """Restore one table as of a moment, with its partitions and TOAST data.

    The cost depends on the size of the table and on the WAL since the last cut before the moment,
    not on the size of the database. Without --at, the moment is the end of the available WAL.

    --to restores owners and privileges, too. If a role is missing on the target, or --to connects
    as a role that may not set an owner, they are left out with a warning.
    """
    moment = moment_of(options)
    targets = [each for each in ("to", "dump", "copy") if options[each] is not None]
    if len(targets) != 1:
        raise click.UsageError("give one of --to, --dump, --copy")
    if options["database"] and options["copy"] is not None:
        raise click.UsageError("--database and --copy exclude each other")
    omitted = Omitted(options["no_owner"], options["no_privileges"])
    if omitted.arguments and options["copy"] is not None:
        raise click.UsageError("--no-owner and --no-privileges need --to or --dump")
    name = options["name"]
    table = None if options["database"] else TableName.parse(name)
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    server = RedoServer(binaries_of(archive, options["pg_bin"]), server_account())
    with tempfile.TemporaryDirectory(prefix="sk-table-", dir=options["work_dir"]) as work:
        folder, restored_in = Path(work), Path(work) / "server"
        restored_in.mkdir()
        point = RestorePoints(archive, wal_sources(archive, options), folder).open(moment)
        click.echo(
            f"from the cut at {format_lsn(point.cut_lsn)}, with WAL up to {point.target}", err=True
        )
        with _restored(SparseRestore(restored_in, server), point, name, table) as restored:
            click.echo(_hand_out(restored, options, omitted, server.binaries, folder))


@contextmanager
def _restored(
    sparse: SparseRestore, point: RestorePoint, name: str, table: TableName | None
) -> Iterator[Restored]:
    found = sparse.database(point, name) if table is None else sparse.table(point, table)
    with found as restored:
        yield restored


def _hand_out(
    restored: Restored,
    options: dict[str, Any],
    omitted: Omitted,
    binaries: PostgresBinaries,
    folder: Path,
) -> str:
    """Writes the table to its destination; returns a line that says where it is."""
    name = options["name"]
    if options["copy"] is not None:
        rows = restored.copy_csv(options["copy"].absolute())
        return f"{rows} rows of {name} are in {options['copy']}"
    if options["dump"] is not None:
        is_custom = options["dump"].suffix == ".dump"
        dump_format = DumpFormat.CUSTOM if is_custom else DumpFormat.PLAIN
        restored.dump(options["dump"].absolute(), dump_format, omitted.arguments)
        return f"{name} is in {options['dump']}"
    dump = folder / "table.dump"
    restored.dump(dump, DumpFormat.CUSTOM)
    RestoreTarget(options["to"], binaries).load(dump, restored.roles(), omitted)
    return f"{name} is restored"
