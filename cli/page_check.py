"""`sk page check`."""

from __future__ import annotations

import secrets
import shlex
import tempfile
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import click
from rich.text import Text

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.moment_options import binaries_of, replay_options, wal_sources
from quorum_wal.cli.output import CommandError, ExitCode, console, plain_table, print_json
from quorum_wal.cli.page_get import FilePath
from quorum_wal.cli.parameters import Dsn, json_option, live_safekeepers_option, timeline_option
from quorum_wal.objectstore.archive import TimelineArchive, require_archive
from quorum_wal.pageserver.checks.check_report import CheckReport, DamagedPage
from quorum_wal.pageserver.checks.directory_check import DataDirectory, DirectoryCheck, OpenPoint
from quorum_wal.pageserver.checks.server_check import ServerCheck, check_server
from quorum_wal.pageserver.checks.server_pages import ServerPages
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.pitr.page_at import PageReader
from quorum_wal.pageserver.pitr.restore_points import point_opener
from quorum_wal.pg_server.account import server_account
from quorum_wal.pgwal.lsn import format_lsn


class ServerOrDirectory(click.ParamType[str | Path]):
    """A data directory, or a libpq connection string."""

    name = "pgdata|dsn"

    def convert(self, value: Any, param: Any, ctx: Any) -> str | Path:
        if isinstance(value, Path):
            return value
        if Path(value).is_dir():
            return Path(value).absolute()
        if "=" not in value and "://" not in value:
            self.fail(f'"{value}" is neither a directory nor a libpq connection string', param, ctx)
        return Dsn().convert(value, param, ctx)


@click.command()
@archive_options()
@timeline_option
@live_safekeepers_option
@click.argument("target", metavar="PGDATA|DSN", type=ServerOrDirectory())
@click.option(
    "--relation",
    metavar="TABLE|FILE",
    help="Check only this relation. On a server: schema.table, with its indexes and TOAST. In a "
    "data directory: a file, as printed by pg_relation_filepath().",
)
@click.option("--sample", type=click.IntRange(min=1), help="Check this many pages, at random.")
@replay_options
@json_option
@click.pass_context
def check(context: click.Context, /, **options: Any) -> None:
    """Compare the pages of a server with those that its WAL makes. Changes nothing.

    With a DSN, reads the pages from the running server through the extension pageinspect, in the
    database of the DSN. With PGDATA, reads the files, whether a server runs there or not. Reports
    each damaged page, with the command that gets the correct page, and exits with 3. Pages that
    cannot be checked are counted.
    """
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    server = RedoServer(binaries_of(archive, options["pg_bin"]), server_account())
    with tempfile.TemporaryDirectory(prefix="sk-check-", dir=options["work_dir"]) as work:
        replay_dir = Path(work) / "server"
        replay_dir.mkdir()
        reader = PageReader(replay_dir, server)
        opener = point_opener(archive, wal_sources(archive, options), Path(work))
        report = _run(archive, reader, opener, options)
    _print(report, options)
    if not report.checked:
        raise CommandError(
            "no page was checked: " + ("; ".join(report.skips()) or "there are none"),
            "Check another relation, or run the check again later.",
        )
    context.exit(ExitCode.BLOCKED if report.damaged else 0)


def _run(
    archive: TimelineArchive, reader: PageReader, open_point: OpenPoint, options: dict[str, Any]
) -> CheckReport:
    target, count, relation = options["target"], options["sample"], options["relation"]
    rng = Random(secrets.randbits(64))
    facts = archive.facts
    if isinstance(target, Path):
        only = None
        if relation is not None:
            only = FilePath().convert(relation, None, None)
        directory = DataDirectory.open(target, facts.server, archive.newest_history())
        return DirectoryCheck(directory, reader, only=only).run(open_point, count, rng)
    with ServerPages.connect(target) as pages:
        check_server(pages, facts.system_id, archive.newest_history())
        checked = ServerCheck(pages, reader, facts.wal_seg_size)
        return checked.run(open_point, count, rng, table=relation)


def _print(report: CheckReport, options: dict[str, Any]) -> None:
    get = _get_command(options)
    if options["json"]:
        print_json(
            {
                "checked": report.checked,
                "damaged": [{**damage_json(each), "get": get(each)} for each in report.damaged],
                "not_checkable": {
                    why.name.lower(): count for why, count in report.skipped.items() if count
                },
            }
        )
        return
    if report.damaged:
        table = plain_table("", "")
        table.show_header = False
        for each in report.damaged:
            table.add_row(Text("damaged", "bold red"), str(each))
            table.add_row("", Text(f"-> {get(each)}", "dim"))
        console().print(table)
    skips = report.skips()
    click.echo(
        f"{report.checked} pages checked, {len(report.damaged)} damaged; "
        f"{sum(report.skipped.values())} not checkable" + (f": {'; '.join(skips)}" * bool(skips))
    )


def damage_json(each: DamagedPage) -> dict[str, Any]:
    """The fields of one damaged page."""
    return {
        "path": each.path,
        "block": each.block,
        "database": each.database,
        "relation": each.relation,
        "reason": each.reason,
        "at_lsn": format_lsn(each.at_lsn),
    }


def _get_command(options: dict[str, Any]) -> Callable[[DamagedPage], str]:
    """The command that gets the correct page, or for a data directory the one that writes it. The
    options of the store are left out, because they may be secrets."""
    where = ["--archive", options["archive"]]
    if options["timeline"] is not None:
        where += ["--timeline", str(options["timeline"])]
    if options["safekeepers"]:
        where += ["--safekeepers", ",".join(map(str, options["safekeepers"]))]

    def command(each: DamagedPage) -> str:
        if isinstance(options["target"], Path):
            words = ["repair", str(options["target"]), each.path, str(each.block)]
            more = []
        else:
            words = ["get", each.path, str(each.block)]
            more = ["--at-lsn", format_lsn(each.at_lsn), "--out", "page.bin"]
        return shlex.join(["sk", "page", *words, *where, *more])

    return command
