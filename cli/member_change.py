"""The steps that the member commands share: observe, plan, check, ask the proposer, observe again.

Law: no command asks for a change that would leave the old or the new set without a live quorum.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from quorum_wal.cli.output import CommandError
from quorum_wal.cli.parameters import http_token_option, safekeepers_option, timeline_option
from quorum_wal.cluster.change_line import ids_text
from quorum_wal.cluster.member_plan import (
    MemberPlan,
    Stage,
    check_quorums,
    steps_of,
    warnings_of,
)
from quorum_wal.cluster.member_view import MemberState, MemberView, Standing
from quorum_wal.cluster.timeline_view import TimelineView, timeline_views
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.membership import UNKNOWN_INSTANCE, Member, Membership
from quorum_wal.consensus.membership_page import split_address
from quorum_wal.walproposer.config import ProposerConfig
from quorum_wal.walproposer.errors import Refusal, WalProposerError
from quorum_wal.walproposer.members.change import cancel_change, change_members
from quorum_wal.walproposer.members.leave_order import order_to_leave
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.safekeeper_client import SafekeeperAddress
from quorum_wal.walproposer.stream.events import ChangeRequest
from quorum_wal.walproposer.timelines.discovery import check_any_answers, discover
from quorum_wal.walproposer.timelines.survey import folder_name, survey

F = TypeVar("F", bound=Callable[..., Any])


def member_options(function: F) -> F:
    """--safekeepers, --http-token-file, --timeline."""
    return safekeepers_option(http_token_option(timeline_option(function)))


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One timeline as it was observed. `present` is its membership. If a timeline of an older
    release lacks the address or instance of a member, `present` has what the member reports."""

    addresses: tuple[SafekeeperAddress, ...]
    http_token: str
    view: TimelineView
    present: Membership

    @classmethod
    def observe(
        cls,
        addresses: tuple[SafekeeperAddress, ...],
        http_token: str,
        timeline: TimelineId | None,
    ) -> MemberChange:
        """Raises WalProposerError."""
        discovery = discover(addresses, http_token)
        check_any_answers(discovery.safekeepers)
        views = [v for v in timeline_views(discovery) if timeline in (None, v.timeline)]
        if not views:
            what = f"timeline {timeline}" if timeline else "any timeline"
            raise Refusal(
                f"no safekeeper that answers has {what}",
                hint="Run sk timeline list to see the existing ones.",
            )
        if len(views) > 1:
            names = ", ".join(str(view.timeline) for view in views)
            raise Refusal(
                f"the safekeepers have {len(views)} timelines: {names}",
                hint="Name one with --timeline TENANT/TIMELINE.",
            )
        return cls(addresses, http_token, views[0], completed(views[0]))

    @property
    def alive(self) -> set[int]:
        """The members that vote, or that follow an elected leader. A change needs only these."""
        members = self.view.members
        return {m.safekeeper_id for m in members if m.is_sound or m.is_followed}

    @property
    def damaged(self) -> dict[int, str]:
        return {m.safekeeper_id: m.damage for m in self.view.members if m.damage}

    def carry_out(self, plan: MemberPlan, *, dry_run: bool, leavers: Collection[int] = ()) -> None:
        """Raises WalProposerError."""
        click.echo(f"timeline {self.view.timeline}")
        members = f"members {ids_text(plan.wanted_ids)}"
        if plan.stage is Stage.DONE and self.view.is_complete:
            self._tell_leavers(leavers, dry_run=dry_run)
            click.echo(f"nothing to change: it has {members}")
            return
        check_quorums(plan, self.alive | {m.id for m in plan.joining}, self.damaged)
        for warning in warnings_of(plan):
            click.echo(f"warning: {warning}", err=True)
        if plan.stage is Stage.DONE:
            click.echo(f"it has {members}, but not yet on the disks of a quorum")
        else:
            click.echo(f"members {ids_text(plan.present.members)} -> {ids_text(plan.wanted_ids)}")
        if plan.stage is Stage.UNDER_WAY:
            click.echo("this change is already under way")
        if dry_run:
            for number, step in enumerate(steps_of(plan), 1):
                click.echo(f"{number}. {step}")
            return
        self._ask(plan)
        after = MemberChange.observe(self.addresses, self.http_token, self.view.timeline)
        after._tell_leavers(leavers, dry_run=False)
        click.echo(f"done: {members}, generation {after.present.generation}")

    def _ask(self, plan: MemberPlan) -> None:
        change_members(
            self._config,
            ChangeRequest(plan.present.generation, plan.wanted),
            lambda line: click.echo(line, err=True),
            http_token=self.http_token,
        )

    def cancel(self) -> None:
        """Raises WalProposerError."""
        cancel_change(self._config, http_token=self.http_token)

    @property
    def _config(self) -> ProposerConfig:
        return ProposerConfig(PrimaryAddress(""), self.addresses, self.view.timeline)

    def _tell_leavers(self, leavers: Collection[int], *, dry_run: bool) -> None:
        """Inform those that did not answer when they were removed."""
        for other in self.view.others:
            if other.safekeeper_id not in leavers or not _holds_log(other):
                continue
            if not self.view.is_complete:
                click.echo(f"{other} is informed that it has left when a quorum answers", err=True)
            elif dry_run:
                click.echo(f"{other} would be informed that it has left, and delete its WAL")
            else:
                self._tell(other)

    def _tell(self, other: MemberView) -> None:
        place = place_of(other, self.addresses)
        try:
            instance = bytes.fromhex(other.instance)
            order_to_leave(
                self._config, place, other.safekeeper_id, instance, self.view.membership,
                http_token=self.http_token,
            )  # fmt: skip
        except WalProposerError as error:
            click.echo(f"could not inform {other} that it has left: {error}", err=True)
        else:
            click.echo(f"{other} was informed that it has left, and has deleted its WAL")


def place_of(member: MemberView, addresses: tuple[SafekeeperAddress, ...]) -> SafekeeperAddress:
    """The address at which it answered, with the libpq settings of the given `addresses`."""
    host, port = split_address(member.address)
    return SafekeeperAddress(host, port, addresses[0].conninfo)


def _holds_log(other: MemberView) -> bool:
    is_told = other.state in (MemberState.LEFT, MemberState.UNREACHABLE, MemberState.NOT_GIVEN)
    return other.standing is Standing.OUTSIDE and not is_told


def completed(view: TimelineView) -> Membership:
    """The membership. Missing instances and addresses are those that the members report."""
    roster = []
    for seen in view.members:
        listed = view.membership.member(seen.safekeeper_id)
        if listed.instance != UNKNOWN_INSTANCE and listed.host:
            roster.append(listed)
        elif seen.instance:
            host, port = split_address(seen.address)
            roster.append(Member(listed.id, bytes.fromhex(seen.instance), host, port, seen.site))
    return view.membership.listed_as(view.membership.stamp, tuple(roster))


def newcomer_at(
    address: SafekeeperAddress, change: MemberChange, expected_id: int | None = None
) -> Member:
    """The safekeeper that answers at `address`. Raises WalProposerError."""
    (found,) = survey((address,))
    if found.error is not None:
        raise found.error
    if expected_id not in (None, found.safekeeper_id):
        raise Refusal(
            f"safekeeper {found.safekeeper_id} is at {address}, not {expected_id}",
            hint="To replace a member with another safekeeper, run sk member replace.",
        )
    damage = found.damaged.get(folder_name(change.view.timeline))
    if damage:
        raise Refusal(
            f"safekeeper {found.safekeeper_id} ({address}) cannot open this timeline: {damage}",
            hint="Start one on an empty data directory, with an --id that no member has or had.",
        )
    if not found.instance:
        raise CommandError(
            f"safekeeper {found.safekeeper_id} ({address}) does not report its instance",
            "It runs an older release: upgrade it first.",
        )
    instance = bytes.fromhex(found.instance)
    return Member(found.safekeeper_id, instance, address.host, address.port, found.site)
