"""`sk member`: show and change the members of a timeline."""

from __future__ import annotations

from pathlib import Path

import click

from quorum_wal.cli.member_change import MemberChange, member_options, newcomer_at
from quorum_wal.cli.member_force import force
from quorum_wal.cli.member_table import members_json, members_section
from quorum_wal.cli.output import console, print_json
from quorum_wal.cli.parameters import (
    SafekeeperPlace,
    http_token,
    http_token_option,
    json_option,
    safekeepers_option,
    timeline_option,
    with_conninfo,
)
from quorum_wal.cluster.member_plan import Stage, plan_add, plan_move, plan_remove, plan_replace
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

_dry_run_option = click.option("--dry-run", is_flag=True, help="Print the steps; change nothing.")
_member_id = click.IntRange(1, 2**63 - 1)


@click.group()
def member() -> None:
    """List, add, remove, replace and move the members of a timeline, while commits go on.

    The running proposer makes the change; the command finds it through the safekeepers. If no
    proposer runs, the command itself acts as the proposer until the change is done. If a change is
    interrupted, run the same command again: it continues the change. For --safekeepers, any present
    or former member is enough to find the present members.
    """


@member.command("list")
@safekeepers_option
@http_token_option
@timeline_option
@json_option
def list_members(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    json: bool,
) -> None:
    """Show the members, the change in progress, and which sites may be lost."""
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    if json:
        print_json(members_json(change.view))
    else:
        console().print(members_section(change.view))


@member.command()
@member_options
@_dry_run_option
@click.argument("address", nargs=-1, required=True, type=SafekeeperPlace())
def add(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    dry_run: bool,
    address: tuple[SafekeeperAddress, ...],
) -> None:
    """Add the safekeepers at these ADDRESSes (HOST:PORT), all in one step.

    They catch up first, and become members only then. To go from 1 to 3 members, add two at once:
    with 2 members, the loss of either one makes commits wait.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    newcomers = [newcomer_at(a, change) for a in with_conninfo(address, safekeeper_conninfo)]
    change.carry_out(plan_add(change.present, newcomers), dry_run=dry_run)


@member.command()
@member_options
@_dry_run_option
@click.argument("safekeeper_id", metavar="ID", nargs=-1, required=True, type=_member_id)
def remove(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    dry_run: bool,
    safekeeper_id: tuple[int, ...],
) -> None:
    """Remove the members with these IDs, all in one step.

    The members to remove need not answer. One that answers is informed when the others have taken
    over: it deletes its WAL, keeps a small control file, and refers clients to the members.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    plan = plan_remove(change.present, safekeeper_id)
    change.carry_out(plan, dry_run=dry_run, leavers=safekeeper_id)


@member.command()
@member_options
@_dry_run_option
@click.argument("safekeeper_id", metavar="ID", type=_member_id)
@click.argument("address", type=SafekeeperPlace())
def replace(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    dry_run: bool,
    safekeeper_id: int,
    address: SafekeeperAddress,
) -> None:
    """Replace member ID with the safekeeper at ADDRESS (HOST:PORT), in one step.

    The member need not answer, and its data may be lost or damaged. The new safekeeper needs
    another --id and an empty data directory; its address may be that of the old one.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    (place,) = with_conninfo((address,), safekeeper_conninfo)
    plan = plan_replace(change.present, safekeeper_id, newcomer_at(place, change))
    if plan.stage is Stage.DONE:
        click.echo(
            f"safekeeper {safekeeper_id} is not a member, and the one at {place} already is",
            err=True,
        )
    change.carry_out(plan, dry_run=dry_run, leavers=(safekeeper_id,))


@member.command()
@member_options
@_dry_run_option
@click.argument("safekeeper_id", metavar="ID", type=_member_id)
@click.argument("address", type=SafekeeperPlace())
def move(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    dry_run: bool,
    safekeeper_id: int,
    address: SafekeeperAddress,
) -> None:
    """Record the new ADDRESS (HOST:PORT) of member ID, which keeps its data directory.

    Also records the --site of the member, even if the address has not changed.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    (place,) = with_conninfo((address,), safekeeper_conninfo)
    moved = newcomer_at(place, change, expected_id=safekeeper_id)
    change.carry_out(plan_move(change.present, moved), dry_run=dry_run)


@member.command()
@member_options
def cancel(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
) -> None:
    """Cancel the change in progress, unless the new members have already taken over."""
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    change.cancel()
    click.echo("the change is being reverted; run sk member list to see its progress")


member.add_command(force)
