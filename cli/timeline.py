"""`sk timeline`: create, list, show and delete timelines on safekeepers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click

from quorum_wal.cli.output import CommandError, ExitCode, console, plain_table, print_json
from quorum_wal.cli.parameters import (
    TimelineName,
    http_token,
    http_token_option,
    json_option,
    primary_option,
    safekeepers_option,
    slot_option,
    with_conninfo,
)
from quorum_wal.cli.status import timeline_json
from quorum_wal.cli.status_tables import (
    damage_text,
    safekeepers_table,
    timeline_section,
    version_text,
)
from quorum_wal.cluster.timeline_view import TimelineView, timeline_views, unopened_timelines
from quorum_wal.cluster.verdict import judge
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.versions import SUPPORTED_MAJORS
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.primary.log_marker import PREFIX
from quorum_wal.walproposer.primary.primary import Primary
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.slot_guard import slot_dropped_on_failure
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.upstream import Upstream
from quorum_wal.walproposer.timelines.discovery import check_any_answers, discover
from quorum_wal.walproposer.timelines.pageserver_forgetting import (
    ForgettingOutcome,
    forget_pageservers,
)
from quorum_wal.walproposer.timelines.primary_log import mark_primary, read_primary_log
from quorum_wal.walproposer.timelines.survey import (
    Member,
    check_members,
    folder_name,
    follow,
    survey,
    wanted_of,
)
from quorum_wal.walproposer.timelines.timeline_creation import DAMAGE_HINT, create_timeline
from quorum_wal.walproposer.timelines.timeline_deletion import (
    DeletionOutcome,
    check_deletable,
    delete_timeline,
)

FACTS = ("--system-id", "--pg-version", "--wal-seg-size", "--start-lsn")


@click.group()
def timeline() -> None:
    """Create, list, show and delete timelines, the logs that safekeepers store."""


# ---- create


@dataclass(frozen=True, slots=True)
class GivenFacts:
    """The facts of a primary, given on the command line instead of --primary."""

    system_id: int | None
    pg_version: int | None
    wal_seg_size: int
    start_lsn: str | None

    def as_primary(self) -> Primary:
        """Raises click.UsageError."""
        if self.system_id is None or self.pg_version is None or self.start_lsn is None:
            raise click.UsageError(f"give --primary, or all of {', '.join(FACTS)}")
        if self.pg_version // 10000 not in SUPPORTED_MAJORS:
            raise click.UsageError(
                f"--pg-version {self.pg_version} is not one of Postgres {SUPPORTED_MAJORS[0]} to "
                f"{SUPPORTED_MAJORS[-1]}; expected server_version_num, as 150018"
            )
        try:
            start_lsn = Lsn.parse(self.start_lsn)
        except LsnSyntaxError as error:
            raise click.UsageError(f"--start-lsn: {error}") from error
        if start_lsn == 0 or start_lsn % self.wal_seg_size:
            raise click.UsageError(f"--start-lsn {start_lsn} is not the start of a segment")
        return Primary(
            ServerFacts(self.system_id, self.pg_version, self.wal_seg_size),
            TimelineHistory(1),
            start_lsn,
            start_lsn,
        )


@timeline.command()
@safekeepers_option
@primary_option(required=False)
@slot_option
@click.option("--timeline", type=TimelineName(), help="Name of the timeline.  [default: a new one]")
@click.option(
    "--system-id",
    type=click.IntRange(1, 2**64 - 1),
    metavar="N",
    help="System identifier; with the next three options instead of --primary.",
)
@click.option("--pg-version", type=int, metavar="N", help="server_version_num, as in 150018.")
@click.option(
    "--wal-seg-size",
    type=click.Choice([str(1 << bits) for bits in range(20, 31)]),
    metavar="BYTES",
    default=str(16 << 20),
    show_default=True,
    help="WAL segment size.",
)
@click.option("--start-lsn", metavar="LSN", help="Beginning of the log: the start of a segment.")
def create(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    primary: str | None,
    slot: str,
    timeline: TimelineId | None,
    system_id: int | None,
    pg_version: int | None,
    wal_seg_size: str,
    start_lsn: str | None,
) -> None:
    """Create a timeline on all the safekeepers, which become its members, and print its name.

    With --primary, the timeline begins at the current segment of the primary. The command creates a
    slot there that keeps the WAL until sk attach runs, and another slot that names the timeline.
    sk attach does all this by itself.
    """
    members = survey(with_conninfo(safekeepers, safekeeper_conninfo))
    check_members(members)
    _check_all_reachable(members)
    facts = GivenFacts(system_id, pg_version, int(wal_seg_size), start_lsn)
    if primary is None:
        click.echo(_create(members, facts.as_primary(), timeline))
        return
    if system_id is not None or pg_version is not None or start_lsn is not None:
        raise click.UsageError(f"--primary excludes {', '.join(FACTS)}")
    address = PrimaryAddress(primary, slot)
    with slot_dropped_on_failure(address):
        _check_belongs_nowhere(address)
        upstream = Upstream(address)
        try:
            created = _create(members, upstream.primary, timeline)
        finally:
            upstream.close()
        mark_primary(address, created)
    click.echo(created)


def _check_belongs_nowhere(address: PrimaryAddress) -> None:
    """Raises Refusal."""
    markers = read_primary_log(address).markers
    if markers:
        raise Refusal(
            f"the primary already belongs to log {markers[0].removeprefix(PREFIX)}",
            hint="sk attach uses that log. To leave it for good, stop its proposer and run sk "
            "detach --drop-slot.",
        )


def _check_all_reachable(members: list[Member]) -> None:
    for member in members:
        if member.error is not None:
            raise Unreachable(
                f"a new timeline needs all safekeepers: {member.error}",
                hint="Start it. After its creation, a timeline needs only a quorum of them.",
            )


def _create(members: list[Member], primary: Primary, wanted: TimelineId | None) -> TimelineId:
    """Raises Refusal if the timeline exists: to create it again on a member that lost its data
    would forget the promises of that member."""
    for member in members:
        for existing, status in member.timelines.items():
            is_same = existing == wanted or (
                wanted is None and int(status["system_id"]) == primary.server.system_id
            )
            if is_same and status["active"]:
                raise Refusal(
                    f"safekeeper {member.client.address} already has timeline {existing} of this "
                    "primary",
                    hint="sk attach uses it. For another one, give a name with --timeline.",
                )
    return create_timeline(members, primary, wanted).timeline


# ---- list, show


@timeline.command("list")
@safekeepers_option
@http_token_option
@json_option
def list_timelines(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    json: bool,
) -> None:
    """List the timelines, one row each, with the state of every member."""
    discovery = discover(
        with_conninfo(safekeepers, safekeeper_conninfo), http_token(http_token_file)
    )
    check_any_answers(discovery.safekeepers)
    views = timeline_views(discovery)
    if json:
        print_json([timeline_json(view, judge(view)) for view in views])
        return
    table = plain_table("timeline", "system", "Postgres", "gen", "commit", "members")
    for view in views:
        table.add_row(
            str(view.timeline),
            view.system_id,
            version_text(view.pg_version),
            str(view.membership.generation),
            str(_commit_lsn(view)),
            ", ".join(f"{m.safekeeper_id} {m.state.value}" for m in view.members),
        )
    for folder, reports in unopened_timelines(discovery).items():
        members = ", ".join(f"{report.safekeeper_id} damaged" for report in reports)
        table.add_row(folder.replace(".", "/"), "-", "-", "-", "-", members)
    out = console()
    out.print(table)
    silent = [report for report in discovery.safekeepers if not report.reachable]
    if silent:
        out.print()
        out.print(safekeepers_table(silent))


def _commit_lsn(view: TimelineView) -> Lsn:
    """The greatest commit_lsn that a member reports."""
    return max(Lsn.parse(m.status["commit_lsn"]) for m in view.members if m.status is not None)


@timeline.command()
@safekeepers_option
@http_token_option
@click.argument("timeline", type=TimelineName())
@json_option
def show(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId,
    json: bool,
) -> None:
    """Show all details of one TIMELINE."""
    discovery = discover(
        with_conninfo(safekeepers, safekeeper_conninfo), http_token(http_token_file)
    )
    views = [view for view in timeline_views(discovery) if view.timeline == timeline]
    unopened = unopened_timelines(discovery).get(folder_name(timeline))
    if unopened:
        raise CommandError(
            f"timeline {timeline} cannot be opened: {damage_text(folder_name(timeline), unopened)}",
            DAMAGE_HINT,
        )
    if not views:
        silent = [report.error for report in discovery.safekeepers if not report.reachable]
        raise CommandError(
            f"no safekeeper that answers has timeline {timeline}"
            + (f"; {len(silent)} did not answer: {silent[0]}" if silent else ""),
            "Run sk timeline list to see the existing ones.",
            ExitCode.UNREACHABLE if silent else ExitCode.FAILED,
        )
    verdict = judge(views[0])
    if json:
        print_json(timeline_json(views[0], verdict))
        return
    out = console()
    out.print(timeline_section(views[0], verdict))
    for member in views[0].members:
        if member.status is not None:
            facts = plain_table(f"safekeeper {member.safekeeper_id}", "")
            for name, value in member.status.items():
                facts.add_row(name, _brief(value))
            out.print(facts, "")


def _brief(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_brief(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ",".join(map(str, value)) or "-"
    return "-" if value in (None, "") else str(value).strip()


# ---- delete


@timeline.command()
@safekeepers_option
@click.argument("timeline", type=TimelineName())
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    timeline: TimelineId,
    yes: bool,
) -> None:
    """Delete a TIMELINE and its WAL from all the safekeepers, for good.

    Its name can never be used again. Exits with 4 if a safekeeper could not be reached, and so may
    still have the timeline; run the command again later.
    """
    members = survey(with_conninfo(safekeepers, safekeeper_conninfo))
    check_members(members)
    members = follow(members, wanted_of(None, timeline))
    check_deletable(members, timeline)
    if not yes:
        _confirm(timeline)
    deletions = delete_timeline(members, timeline)
    for deletion in deletions:
        line = f"{deletion.address}: {deletion.outcome.value}"
        click.echo(f"{line}: {deletion.reason}" if deletion.reason else line)
    failed = [d for d in deletions if d.outcome is DeletionOutcome.FAILED]
    if failed:
        raise CommandError(
            f"timeline {timeline} was not deleted on {len(failed)} of {len(members)} safekeepers",
            "Run the command again when they answer.",
            ExitCode.UNREACHABLE,
        )
    if all(deletion.outcome is DeletionOutcome.ABSENT for deletion in deletions):
        raise CommandError(
            f"no safekeeper has timeline {timeline}",
            "Run sk timeline list to see the existing ones.",
        )


def _confirm(timeline: TimelineId) -> None:
    """Raises CommandError unless the timeline's id is typed."""
    name = timeline.timeline_id.hex()
    try:
        typed = click.prompt(f"This cannot be undone. Type {name} to delete it", err=True)
    except click.Abort:
        typed = ""
    if typed.strip() not in (name, str(timeline)):
        raise CommandError("not confirmed, nothing was deleted", "Type the name, or give --yes.")


# ---- forget-pageserver


@timeline.command("forget-pageserver")
@safekeepers_option
@click.argument("timeline", type=TimelineName())
def forget_pageserver(
    safekeepers: tuple[SafekeeperAddress, ...], safekeeper_conninfo: str, timeline: TimelineId
) -> None:
    """Stop keeping WAL for the pageserver of a TIMELINE, and forget its generation.

    Use it if the pageserver was removed for good. A pageserver that still runs registers again.
    Exits with 4 if a safekeeper could not be reached, and so may still know the pageserver; run the
    command again later.
    """
    members = survey(with_conninfo(safekeepers, safekeeper_conninfo))
    check_members(members)
    results = forget_pageservers(follow(members, wanted_of(None, timeline)), timeline)
    for result in results:
        click.echo(str(result))
    failed = [each for each in results if each.outcome is ForgettingOutcome.FAILED]
    if failed:
        raise CommandError(
            f"{len(failed)} of {len(results)} safekeepers have not forgotten the pageserver",
            failed[0].hint or "Run the command again when they answer.",
            ExitCode.UNREACHABLE
            if any(each.is_unreachable for each in failed)
            else ExitCode.FAILED,
        )
