"""`sk page history`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.moment_options import wal_sources
from quorum_wal.cli.moment_text import MomentText
from quorum_wal.cli.output import console, plain_table, print_json
from quorum_wal.cli.page_get import FilePath
from quorum_wal.cli.parameters import json_option, live_safekeepers_option, timeline_option
from quorum_wal.objectstore.archive import require_archive
from quorum_wal.pageserver.pitr.page_history import HistoryReader, PageEvent
from quorum_wal.pageserver.pitr.page_touch_scan import Touch
from quorum_wal.pageserver.pitr.restore_points import RecoveryTarget
from quorum_wal.pgwal.errors import WalError
from quorum_wal.pgwal.lsn import Lsn, format_lsn


class TimeOrLsn(click.ParamType[RecoveryTarget]):
    """`0/3000028`, a time, or `10 minutes ago`."""

    name = "time|lsn"

    def convert(self, value: Any, param: Any, ctx: Any) -> RecoveryTarget:
        if isinstance(value, RecoveryTarget):
            return value
        text = str(value).strip()
        if "/" in text:
            try:
                return RecoveryTarget(lsn=int(Lsn.parse(text)))
            except WalError as error:
                self.fail(str(error), param, ctx)
        return RecoveryTarget(time=MomentText().convert(text, param, ctx))


@click.command()
@archive_options()
@timeline_option
@live_safekeepers_option
@click.argument("path", metavar="FILE", type=FilePath())
@click.argument("block", type=click.IntRange(0, (1 << 32) - 2))
@click.option("--from", "begin", type=TimeOrLsn(), help="Begin here.")
@click.option("--to", "end", type=TimeOrLsn(), help="End before it.")
@json_option
def history(**options: Any) -> None:
    """List the WAL records that touched a page, and the cuts whose layers have the page.

    FILE is the file as printed by pg_relation_filepath(). The time of a record is the time at which
    its transaction ended. WAL is not read if the layers show that it does not touch the page.
    """
    archive = require_archive(
        open_archive(options["archive"], options["archive_option"]), options["timeline"]
    )
    reader = HistoryReader(archive, wal_sources(archive, options))
    begin, end = options["begin"] or RecoveryTarget(), options["end"] or RecoveryTarget()
    found = reader.read(options["path"], options["block"], begin, end)
    if options["json"]:
        print_json(
            {
                "cuts": [format_lsn(lsn) for lsn in found.cuts],
                "missing": [[format_lsn(a), format_lsn(b)] for a, b in found.missing],
                "records": [_event_json(event) for event in found.events],
            }
        )
        return
    table = plain_table("lsn", "time", "xid", "manager", "operation", "page", "transaction")
    for event in found.events:
        table.add_row(
            format_lsn(event.lsn),
            _time(event.time),
            str(event.xid or ""),
            event.rmgr,
            event.operation,
            touch_text(event.touch),
            event.outcome,
        )
    console().print(table)
    cuts = ", ".join(map(format_lsn, found.cuts)) or "none"
    click.echo(f"{len(found.events)} records; in the layers of the cuts: {cuts}")
    for first, last in found.missing:
        click.echo(
            f"sk: warning: the WAL from {format_lsn(first)} to {format_lsn(last)} is missing; its "
            "records are not shown",
            err=True,
        )


def touch_text(touch: Touch) -> str:
    """The kinds of a touch in words."""
    names = {
        Touch.FILE: "its file",
        Touch.VM_CLEAR: "bits cleared",
        Touch.IMAGE: "full image",
        Touch.INIT: "initialized",
        Touch.BLOCK: "changed",
    }
    said = [name for each, name in names.items() if touch & each]
    return ", ".join(said[:-1] if len(said) > 1 and touch & Touch.BLOCK else said)


def _event_json(event: PageEvent) -> dict[str, Any]:
    return {
        "lsn": format_lsn(event.lsn),
        "end_lsn": format_lsn(event.end_lsn),
        "time": event.time.isoformat(" ") if event.time else None,
        "xid": event.xid or None,
        "rmgr": event.rmgr,
        "operation": event.operation,
        "has_image": bool(event.touch & Touch.IMAGE),
        "touch": [each.name.lower() for each in Touch if event.touch & each and each.name],
        "outcome": event.outcome or None,
    }


def _time(value: datetime | None) -> str:
    return value.astimezone().isoformat(" ", "milliseconds") if value else ""
