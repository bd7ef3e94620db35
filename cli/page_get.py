"""`sk page get`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.moment_options import binaries_of, moment_of, moment_options, wal_sources
from quorum_wal.cli.output import print_json
from quorum_wal.cli.parameters import json_option, live_safekeepers_option, timeline_option
from quorum_wal.objectstore.archive import require_archive
from quorum_wal.pageserver.epochs.redo import RedoServer
from quorum_wal.pageserver.layers.fork import Fork, ForkKind, parse_file
from quorum_wal.pageserver.layers.page_header import PageHeader, page_checksum
from quorum_wal.pageserver.pitr.page_at import FoundPage, PageReader
from quorum_wal.pageserver.pitr.restore_points import RestorePoints
from quorum_wal.pg_server.account import server_account
from quorum_wal.pgwal.lsn import format_lsn


class FilePath(click.ParamType[Fork]):
    """`base/5/16384`, as printed by pg_relation_filepath(); `_vm`, `_init` for other forks."""

    name = "path"

    def convert(self, value: Any, param: Any, ctx: Any) -> Fork:
        if isinstance(value, Fork):
            return value
        found = parse_file(str(value))
        if found is None or found[1] or found[0].kind is ForkKind.FSM:
            self.fail(
                f'"{value}" is not a file of a relation; expected the output of '
                "pg_relation_filepath(), for example base/5/16384",
                param,
                ctx,
            )
        return found[0]


@click.command()
@archive_options()
@timeline_option
@live_safekeepers_option
@click.argument("path", type=FilePath())
@click.argument("block", type=click.IntRange(0, (1 << 32) - 2))
@moment_options
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the page, 8192 bytes, to a new file.",
)
@json_option
def get(**options: Any) -> None:
    """Show a page, given by its file and block number, as of a moment.

    PATH is the file as printed by pg_relation_filepath().
    """
    fork, block = options["path"], options["block"]
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    server = RedoServer(binaries_of(archive, options["pg_bin"]), server_account())
    with tempfile.TemporaryDirectory(prefix="sk-page-", dir=options["work_dir"]) as work:
        folder = Path(work)
        point = RestorePoints(archive, wal_sources(archive, options), folder).open(
            moment_of(options), page=(fork, block)
        )
        replay_dir = folder / "server"
        replay_dir.mkdir()
        found = PageReader(replay_dir, server).read(point, fork, block)
    if options["out"] is not None:
        with options["out"].open("xb") as file:
            file.write(found.content)
    page = {**_page(found, fork, block), "at": point.target, "cut": format_lsn(point.cut_lsn)}
    if options["json"]:
        print_json(page)
    else:
        for name, value in page.items():
            click.echo(f"{name.replace('_', ' '):15} {value}")


def _page(found: FoundPage, fork: Fork, block: int) -> dict[str, Any]:
    header = PageHeader.parse(found.content)
    expected = page_checksum(found.content, block)
    is_new = header.is_new
    checksum = "none" if not header.checksum else "right"
    if header.checksum and header.checksum != expected:
        checksum = f"wrong: {header.checksum:04X}, expected {expected:04X}"
    facts = {} if is_new else {**asdict(header), "lsn": format_lsn(header.lsn)}
    return {
        "fork": str(fork),
        "block": block,
        "found_in": found.origin.value,
        "is_new": is_new,
        **facts,
        "checksum": checksum,
    }
