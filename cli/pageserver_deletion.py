"""`sk pageserver delete-timeline`."""

from __future__ import annotations

from typing import Any

import click

from quorum_wal.cli.archive_options import archive_options, open_archive
from quorum_wal.cli.generations_options import generations_options, open_generations
from quorum_wal.cli.output import CommandError, print_json
from quorum_wal.cli.parameters import TimelineName, json_option
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.objectstore.store import ObjectStore
from quorum_wal.pageserver.attachments.timeline_deletion import Holder, TimelineDeletion
from quorum_wal.pageserver.objects.page_keys import TOMBSTONE, PageKeys


@click.command()
@archive_options()
@click.argument("timeline", type=TimelineName())
@generations_options()
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def delete_timeline(**options: Any) -> None:
    """Delete all cuts and layers of a TIMELINE from the archive, for good.

    Base backups and WAL are kept. No pageserver accepts the timeline again, because its id is never
    reused. If the timeline is attached, its pageserver stops within seconds. If the command was
    interrupted, run it again.
    """
    timeline: TimelineId = options["timeline"]
    store = open_archive(options["archive"], options["archive_option"])
    service = open_generations(options)
    try:
        deletion = TimelineDeletion(store, service, timeline)
        holder = deletion.holder()
        names = _names(store, timeline)
        if not options["yes"]:
            _confirm(timeline, holder, names)
        removed = deletion.run()
    finally:
        service.close()
    if options["json"]:
        node_id = holder.attachment.node_id if holder.attachment is not None else None
        print_json(
            {
                "timeline": str(timeline),
                "objects": removed.objects,
                "suffix": str(removed.suffix),
                "node_id": node_id,
            }
        )
        return
    click.echo(f"{removed.objects} objects deleted; the pages of the timeline are deleted for good")
    if holder.attachment is not None:
        click.echo(
            f"the timeline is attached to node {holder.attachment.node_id}, which stops at its "
            "next validation, and deletes objects that it was still uploading"
        )
    click.echo("safekeepers keep WAL for it until sk timeline forget-pageserver")


def _names(store: ObjectStore, timeline: TimelineId) -> frozenset[str]:
    """The names of the objects, also of the tombstone. Raises CommandError if there are none."""
    prefix = PageKeys(timeline).prefix
    found = frozenset(info.key.removeprefix(prefix) for info in store.list(prefix))
    if not found:
        raise CommandError(
            f"archive {store.url} has no pages of timeline {timeline}",
            "Run sk archive status to see the timelines.",
        )
    return found


def _confirm(timeline: TimelineId, holder: Holder, names: frozenset[str]) -> None:
    """Raises CommandError unless the timeline's id is typed."""
    name = timeline.timeline_id.hex()
    objects = len(names - {TOMBSTONE})
    click.echo(f"{objects} objects; tenant {timeline.tenant_id.hex()} is {holder}", err=True)
    if TOMBSTONE in names:
        click.echo("an earlier deletion was interrupted; this command completes it", err=True)
    try:
        typed = click.prompt(f"This cannot be undone. Type {name} to delete them", err=True)
    except click.Abort:
        typed = ""
    if typed.strip() not in (name, str(timeline)):
        raise CommandError("not confirmed, nothing was deleted", "Type the name, or give --yes.")
