"""`sk table restore`."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from backup.archived_wal import ArchivedWalSource
from backup.safekeeper_wal import Safekeeper, SafekeeperWalSource
from backup.wal_source import WalSource
from cli.archive_options import archive_options, open_archive
from cli.output import CommandError
from cli.parameters import Dsn, live_safekeepers_option, timeline_option, with_conninfo
from objectstore.archive import TimelineArchive, require_archive
from pageserver.moments import Moment, Moments
from pageserver.redo import RedoServer
from pageserver.restored_table import DumpFormat
from pageserver.sparse_restore import Restored, RestorePoint, SparseRestore
from pageserver.table_name import TableName
from pg_server.account import server_account
from pg_server.binaries import PostgresBinaries, find_postgres
from pg_server.program import run_program
from pgwal.errors import WalError
from pgwal.lsn import Lsn, format_lsn

RESTORE_SECONDS_MAX = 24 * 3600.0
UNITS = ("seconds", "minutes", "hours", "days")
AGO = re.compile(rf"([0-9]{{1,6}}) ({'|'.join(unit[:-1] for unit in UNITS)})s? ago", re.ASCII)


class MomentText(click.ParamType[datetime]):
    """`2026-11-21T10:15:00+00:00`, or `10 minutes ago`."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        if ago := AGO.fullmatch(text):
            return datetime.now(UTC) - timedelta(**{f"{ago[2]}s": int(ago[1])})
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(
                f'"{text}" is no time: 2026-11-21T10:15:00+00:00, "10 minutes ago"', param, ctx
            )
        if moment.tzinfo is None:
            self.fail(f'"{text}" needs its offset from UTC, as in {text}+00:00', param, ctx)
        return moment


@click.command()
@archive_options()
@timeline_option
@live_safekeepers_option
@click.argument("name", metavar="DATABASE.SCHEMA.TABLE")
@click.option("--database", is_flag=True, help="NAME is a database: all of it.")
@click.option("--at", type=MomentText(), help='When: a time, or "10 minutes ago".')
@click.option("--at-lsn", metavar="LSN", help="Or a position in the WAL.")
@click.option("--to", type=Dsn(), help="Into this server: its database must not have the table.")
@click.option(
    "--dump",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Into a new file, as pg_dump writes it; .dump: in its custom format.",
)
@click.option(
    "--copy",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Its rows into a new file, as CSV.",
)
@click.option(
    "--pg-bin", type=click.Path(path_type=Path), help="Programs of Postgres to do it with."
)
@click.option(
    "--work-dir",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="For the table's files and the WAL behind the cut.  [default: the temporary folder]",
)
def restore(**options: Any) -> None:
    """One table as it was: with its partitions, and what it has in TOAST.

    What that costs grows with the table and with the WAL behind the cut before that moment, not
    with the database. Without --at it is the end of the WAL that there is.
    """
    moment = _moment(options)
    targets = [each for each in ("to", "dump", "copy") if options[each] is not None]
    if len(targets) != 1:
        raise click.UsageError("give one of --to, --dump, --copy")
    if options["database"] and options["copy"] is not None:
        raise click.UsageError("--copy is of one table")
    name = options["name"]
    table = None if options["database"] else TableName.parse(name)
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    server = RedoServer(_binaries(archive, options["pg_bin"]), server_account())
    with tempfile.TemporaryDirectory(prefix="sk-table-", dir=options["work_dir"]) as work:
        folder, restored_in = Path(work), Path(work) / "server"
        restored_in.mkdir()
        point = Moments(archive, _sources(archive, options), folder).open(moment)
        click.echo(
            f"from the cut at {format_lsn(point.cut_lsn)}, with WAL up to {point.moment}", err=True
        )
        with _restored(SparseRestore(restored_in, server), point, name, table) as restored:
            click.echo(_hand_out(restored, options, server.binaries, folder))


@contextmanager
def _restored(
    sparse: SparseRestore, point: RestorePoint, name: str, table: TableName | None
) -> Iterator[Restored]:
    found = sparse.database(point, name) if table is None else sparse.table(point, table)
    with found as restored:
        yield restored


def _hand_out(
    restored: Restored, options: dict[str, Any], binaries: PostgresBinaries, folder: Path
) -> str:
    """What was done."""
    name = options["name"]
    if options["copy"] is not None:
        rows = restored.copy_csv(options["copy"].absolute())
        return f"{rows} rows of {name} are in {options['copy']}"
    if options["dump"] is not None:
        is_custom = options["dump"].suffix == ".dump"
        dump_format = DumpFormat.CUSTOM if is_custom else DumpFormat.PLAIN
        restored.dump(options["dump"].absolute(), dump_format)
        return f"{name} is in {options['dump']}"
    dump = folder / "table.dump"
    restored.dump(dump, DumpFormat.CUSTOM)
    _load(dump, options["to"], binaries)
    return f"{name} is restored"


def _load(dump: Path, dsn: str, binaries: PostgresBinaries) -> None:
    """By pg_restore, in one transaction. A password goes by the environment: commands are seen."""
    keywords = conninfo_to_dict(dsn)
    password = keywords.pop("password", None)
    done = run_program(
        [
            *(binaries.program("pg_restore"), "--exit-on-error", "--single-transaction"),
            *("--no-owner", f"--dbname={make_conninfo('', **keywords)}", dump),
        ],
        env={"PGPASSWORD": str(password)} if password else None,
        timeout=RESTORE_SECONDS_MAX,
        check=False,
    )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or ["it gave no reason"]
        raise CommandError(
            f"pg_restore refused: {lines[0].removeprefix('pg_restore: error: ')}",
            "Nothing was changed there. Name another database, or move its table away.",
        )


def _moment(options: dict[str, Any]) -> Moment:
    """Raises click.UsageError."""
    if options["at"] is not None and options["at_lsn"] is not None:
        raise click.UsageError("--at and --at-lsn exclude each other")
    if options["at_lsn"] is None:
        return Moment(time=options["at"])
    try:
        return Moment(lsn=int(Lsn.parse(options["at_lsn"])))
    except WalError as error:
        raise click.UsageError(f"--at-lsn: {error}") from error


def _sources(archive: TimelineArchive, options: dict[str, Any]) -> list[WalSource]:
    """The archive; then safekeepers that live, for what it does not have yet."""
    sources: list[WalSource] = [ArchivedWalSource(lambda: archive)]
    addresses = with_conninfo(options["safekeepers"], options["safekeeper_conninfo"])
    if addresses:
        timeline = archive.timeline
        members = [Safekeeper(str(a), partial(a.connect, timeline)) for a in addresses]
        sources.append(SafekeeperWalSource(members))
    return sources


def _binaries(archive: TimelineArchive, chosen: Path | None) -> PostgresBinaries:
    """Raises Unavailable."""
    if chosen is not None:
        return PostgresBinaries.at(chosen)
    return find_postgres(archive.facts.server.pg_major)
