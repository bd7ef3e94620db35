"""`sk member force`: make one safekeeper the only member when a quorum is lost for good."""

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
@click.option("--dry-run", is_flag=True, help="Print the steps; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask; confirms that the disks are destroyed.")
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
    """Continue without a quorum: the members with these IDs are DESTROYED. Commits may be lost.

    Use it only if so many disks are lost for good that no quorum can ever answer again. Of the
    safekeepers that answer, the one whose log ends last becomes the only member; WAL that it lacks
    is lost. The command first reports what may be lost, and asks. No proposer may run. Afterwards
    run sk attach and sk member add. After a crash, run the command again.
    """
    addresses = with_conninfo(safekeepers, safekeeper_conninfo)
    change = MemberChange.observe(addresses, http_token(http_token_file), timeline)
    click.echo(f"timeline {change.view.timeline}")
    rest = uninformed(change.view)
    if rest:  # an earlier run was interrupted here
        click.echo(f"{change.view.members[0]} is already the only member")
        if not dry_run:
            _tell(change, rest, change.view.membership)
        return
    plan = plan_force(change.view, safekeeper_id, secrets.token_bytes(UUID_BYTES))
    click.echo(plan.warning)
    if dry_run:
        click.echo(f"1. {plan.keeper} becomes the only member")
        for number, member in enumerate(plan.informed, 2):
            click.echo(f"{number}. {member} is informed; sk member add makes it a member again")
        return
    if not yes:
        _confirm()
    _carry_out(change, plan)


def _confirm() -> None:
    """Raises CommandError unless the word is typed."""
    try:
        typed = click.prompt(f'This cannot be undone. Type "{WORD}" to continue', err=True)
    except click.Abort:
        click.echo(err=True)
        typed = ""
    if typed.strip() != WORD:
        raise CommandError("not confirmed, nothing was changed", f'Type "{WORD}", or give --yes.')


def _carry_out(change: MemberChange, plan: ForcePlan) -> None:
    """Changes the remaining member first: from then on the others cannot elect a leader without it.
    Raises WalProposerError."""
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
    """Raises CommandError if a safekeeper could not be informed."""
    failed = []
    for member in members:
        place = place_of(member, change.addresses)
        try:
            force_membership(place, change.view.timeline, said)
        except WalProposerError as error:
            click.echo(f"could not inform {member}: {error}", err=True)
            failed.append(str(member))
        else:
            click.echo(f"{member} was informed")
    if failed:
        raise CommandError(
            f"could not inform these safekeepers that they are no longer members: "
            f"{', '.join(failed)}",
            "Run the command again when they answer.",
            ExitCode.UNREACHABLE,
        )
