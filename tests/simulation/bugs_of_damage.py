"""Planted bugs of a member that lost a part of its log: rule 9 of the safekeeper."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from quorum_wal.consensus.messages import VoteResponse
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.checked_wal import CheckedWal
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.events import Action, PersistControl, TruncateWal
from quorum_wal.walproposer.stream.progress import Progress
from quorum_wal.walproposer.stream.proposer import Proposer

from .planting import Patch, plant

Actions = list[Action]


@plant
def damage_taken_for_a_torn_tail(patch: Patch) -> None:
    """Only WAL that was known to be committed counts as lost."""
    patch(
        ControlState,
        "horizon_lsn",
        property(lambda self: max(self.local_start_lsn, self.commit_lsn)),
    )


@plant
def flush_lsn_not_saved_at_a_vote(patch: Patch) -> None:
    """The promise is saved, but not the position up to which the log was flushed then."""
    promise = Acceptor._promise

    def stale(self: Acceptor, *args: Any) -> Actions:
        flush_lsn = self.control.flush_lsn
        actions = promise(self, *args)
        self.control = replace(self.control, flush_lsn=min(flush_lsn, self.flush_lsn))
        return [PersistControl(self.control) for _ in actions]

    patch(Acceptor, "_promise", stale)


@plant
def saved_flush_lsn_not_lowered_before_a_truncation(patch: Patch) -> None:
    elected = Acceptor._elected

    def late(self: Acceptor, *args: Any) -> Actions:
        flush_lsn = self.control.flush_lsn
        actions = elected(self, *args)
        at = [i for i, action in enumerate(actions) if isinstance(action, TruncateWal)]
        return [
            PersistControl(replace(action.state, flush_lsn=flush_lsn))
            if isinstance(action, PersistControl) and at and i < at[0]
            else action
            for i, action in enumerate(actions)
        ]

    patch(Acceptor, "_elected", late)


@plant
def damaged_member_votes(patch: Patch) -> None:
    response = Acceptor._vote_response

    def granted(self: Acceptor, granted: bool) -> VoteResponse:
        vote = response(self, granted)
        return replace(vote, granted=granted or bool(self.control.lost_lsn))

    patch(Acceptor, "_vote_response", granted)


@plant
def loss_forgotten_at_a_restart(patch: Patch) -> None:
    """It counts as complete when no WAL is missing any more, but the log was truncated
    meanwhile."""
    init = Acceptor.__init__

    def forgetful(
        self: Acceptor, number: int, instance: bytes, control: ControlState, flush_lsn: int
    ) -> None:
        if flush_lsn >= control.horizon_lsn:
            control = replace(control, lost_lsn=0)
        init(self, number, instance, control, flush_lsn)

    patch(Acceptor, "__init__", forgetful)


@plant
def whole_as_soon_as_it_follows(patch: Patch) -> None:
    def at_once(self: Acceptor) -> Actions:
        self.control = replace(self.control, lost_lsn=0, flush_lsn=self.flush_lsn)
        return [PersistControl(self.control)]

    patch(Acceptor, "_clear_lost_lsn", at_once)


@plant
def whole_at_the_start_of_the_term(patch: Patch) -> None:
    """The leader's own commits may have counted on the lost WAL."""
    clear_lost_lsn = Acceptor._clear_lost_lsn

    def without_commit(self: Acceptor) -> Actions:
        sent_lsn, has_append = self.sent_commit_lsn, self._has_append
        self.sent_commit_lsn, self._has_append = 0, True
        actions = clear_lost_lsn(self)
        self.sent_commit_lsn, self._has_append = sent_lsn, has_append
        return actions

    patch(Acceptor, "_clear_lost_lsn", without_commit)


@plant
def vote_of_a_damaged_member_counted(patch: Patch) -> None:
    vote = Proposer._vote

    def counted(self: Proposer, progress: Progress, message: VoteResponse) -> Any:
        if message.promised == self.node_id:
            message = replace(message, granted=True)
        return vote(self, progress, message)

    patch(Proposer, "_vote", counted)


@plant
def sent_wal_is_not_checked(patch: Patch) -> None:
    """A donor copies damaged WAL to a member that catches up."""
    patch(
        CheckedWal,
        "read",
        lambda self, lsn, length, facts: self._read_raw(lsn, length),
    )
