"""`sk member force`: a quorum is lost for good, and one that is left goes on alone."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from quorum_wal.cli.member_change import MemberChange, member_options, place_of
from quorum_wal.cli.output import CommandError, ExitCode
from quorum_wal.cli.parameters import http_token, with_conninfo
from quorum_wal.cluster.force_plan import UUID_BYTES, ForcePlan, plan_force, uninformed
from quorum_wal.cluster.member_view import MemberView
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import Membership
from quorum_wal.walproposer.errors import WalProposerError
from quorum_wal.walproposer.members.force import force_membership
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress

WORD = "destroyed"


@click.command()
@member_options
@click.option("--dry-run", is_flag=True, help="Say what would be done; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask: the disks are destroyed.")
@click.argument("safekeeper_id", metavar="ID", nargs=-1, type=click.IntRange(1, 2**63 - 1))
def force(
    safekeepers: tuple[SafekeeperAddress, ...],
    safekeeper_conninfo: str,
    http_token_file: Path | None,
    timeline: TimelineId | None,
    dry_run: bool,
    yes: bool,
    safekeeper_id: tuple[int, ...],
) -> None:
    """Go on without a quorum: the members with these IDs are DESTROYED. Commits may be lost.

    For when so many disks are lost for good that no quorum can ever be had again. Of the
    safekeepers that answer, the one with the most of the log becomes the only member; what it lacks
    is gone. Before anything is done it says what may be lost, and asks. No proposer may run. Then
    sk attach, and sk member add. After a crash, run it again.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    click.echo(f"timeline {change.view.timeline}")
    rest = uninformed(change.view)
    if rest:  # an earlier run was broken off here
        click.echo(f"{change.view.members[0]} was made the only member already")
        if not dry_run:
            _tell(change, rest, change.view.membership)
        return
    plan = plan_force(change.view, safekeeper_id, secrets.token_bytes(UUID_BYTES))
    click.echo(plan.warning)
    if dry_run:
        click.echo(f"1. {plan.keeper} becomes the only member")
        for number, member in enumerate(plan.informed, 2):
            click.echo(f"{number}. {member} is told so; sk member add makes it a member again")
        return
    if not yes:
        _confirm()
    _carry_out(change, plan)


def _confirm() -> None:
    """Raises CommandError unless the word is typed."""
    try:
        typed = click.prompt(f'This cannot be undone. Type "{WORD}" to go on', err=True)
    except click.Abort:
        click.echo(err=True)
        typed = ""
    if typed.strip() != WORD:
        raise CommandError("not confirmed, nothing was done", f'Type "{WORD}", or give --yes.')


def _carry_out(change: MemberChange, plan: ForcePlan) -> None:
    """The keeper first: from then on the others are too few to elect anybody without it. Raises
    WalProposerError."""
    place = place_of(plan.keeper, change.addresses)
    force_membership(place, change.view.timeline, plan.membership)
    click.echo(
        f"{plan.keeper} is the only member, generation {plan.membership.generation}: sk attach its "
        "primary, then sk member add"
    )
    _tell(change, plan.informed, plan.membership)


def _tell(
    change: MemberChange, members: tuple[MemberView, ...] | list[MemberView], said: Membership
) -> None:
    """Raises CommandError when one was not told."""
    failed = []
    for member in members:
        place = place_of(member, change.addresses)
        try:
            force_membership(place, change.view.timeline, said)
        except WalProposerError as error:
            click.echo(f"{member} was not told: {error}", err=True)
            failed.append(str(member))
        else:
            click.echo(f"{member} was told")
    if failed:
        raise CommandError(
            f"not told that they are no members any more: {', '.join(failed)}",
            "Run the command again when they answer.",
            ExitCode.UNREACHABLE,
        )
