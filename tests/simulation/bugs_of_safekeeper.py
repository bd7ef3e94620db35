"""Planted bugs of the acceptor, its disk and the search for the end of the log.

Each is a mistake that an implementation of the law could make, or has made.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

import quorum_wal.pgwal.end_of_wal
import quorum_wal.safekeeper.refusals
import quorum_wal.walproposer.stream.leader
from quorum_wal.consensus.ids import NodeId
from quorum_wal.consensus.messages import Append, Elected, VoteRequest, VoteResponse
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.boundary import BoundaryFinder
from quorum_wal.pgwal.end_of_wal import EndOfWal
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwal.walker import RecordWalker
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.donor_rule import DonorRule
from quorum_wal.safekeeper.events import Action, FlushWal, PersistControl, Reply, TruncateWal
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.progress import Progress

from .disk import Disk
from .planting import Patch, plant, without

Actions = list[Action]


# ---- votes


@plant
def vote_without_a_flush(patch: Patch) -> None:
    patch(Acceptor, "_vote", without(FlushWal, Acceptor._vote))


@plant
def vote_without_persisting(patch: Patch) -> None:
    patch(Acceptor, "_vote", without(PersistControl, Acceptor._vote))


@plant
def vote_answered_before_persisting(patch: Patch) -> None:
    vote = Acceptor._vote
    patch(Acceptor, "_vote", lambda *args: sorted(vote(*args), key=lambda a: type(a) is not Reply))


@plant
def equal_term_granted_to_another_proposer(patch: Patch) -> None:
    vote = Acceptor._vote

    def by_term_alone(self: Acceptor, connection: int, request: VoteRequest) -> Actions:
        if request.node_id.term == self.control.promised.term:
            self.control = replace(self.control, promised=request.node_id)
        return vote(self, connection, request)

    patch(Acceptor, "_vote", by_term_alone)


@plant
def vote_granted_below_the_promise(patch: Patch) -> None:
    vote = Acceptor._vote

    def whoever_asks(self: Acceptor, connection: int, request: VoteRequest) -> Actions:
        if request.node_id < self.control.promised:
            self.control = replace(self.control, promised=NodeId.ZERO)
        return vote(self, connection, request)

    patch(Acceptor, "_vote", whoever_asks)


@plant
def promise_forgotten_at_a_restart(patch: Patch) -> None:
    init = Acceptor.__init__

    def forgetful(self: Acceptor, number: int, instance: bytes, control: Any, lsn: int) -> None:
        init(self, number, instance, replace(control, promised=NodeId.ZERO), lsn)

    patch(Acceptor, "__init__", forgetful)


@plant
def position_taken_from_the_greeting(patch: Patch) -> None:
    """The vote has the end of the log at the start of the connection."""
    greeting, vote = Acceptor._greeting, Acceptor._vote
    positions: dict[tuple[int, int], int] = {}

    def greet(self: Acceptor, connection: int, message: Any) -> Actions:
        positions[id(self), connection] = self.flush_lsn
        return greeting(self, connection, message)

    def stale(self: Acceptor, connection: int, request: VoteRequest) -> Actions:
        actions = vote(self, connection, request)
        answer = actions[-1].message if isinstance(actions[-1], Reply) else None
        lsn = positions.get((id(self), connection))
        if isinstance(answer, VoteResponse) and lsn is not None and lsn < answer.flush_lsn:
            history = answer.term_history.clipped(lsn)
            answer = replace(answer, flush_lsn=lsn, term_history=history)
            return [*actions[:-1], Reply(connection, answer)]
        return actions

    patch(Acceptor, "_greeting", greet)
    patch(Acceptor, "_vote", stale)


@plant
def vote_reports_a_torn_record(patch: Patch) -> None:
    """Its position is the end of the bytes, not that of the last whole record."""
    vote = Acceptor._vote_response

    def torn(self: Acceptor, granted: bool) -> VoteResponse:
        return replace(vote(self, granted), flush_lsn=self.durable_lsn)

    patch(Acceptor, "_vote_response", torn)


@plant
def streaming_outlives_a_vote(patch: Patch) -> None:
    """The deposed leader continues, and what it appends is kept under the new promise."""
    vote, append = Acceptor._vote, Acceptor._append

    def keeps(self: Acceptor, connection: int, request: VoteRequest) -> Actions:
        streaming = self.streaming
        actions = vote(self, connection, request)
        self.streaming = streaming
        return actions

    def accepts(self: Acceptor, connection: int, message: Append) -> Actions:
        if connection == self.streaming:
            message = msgspec.structs.replace(message, node_id=self.control.promised)
        return append(self, connection, message)

    patch(Acceptor, "_vote", keeps)
    patch(Acceptor, "_append", accepts)


@plant
def history_not_clipped(patch: Patch) -> None:
    patch(TermHistory, "clipped", lambda self, flush_lsn: self)


# ---- following a leader


@plant
def elected_of_a_lower_ballot_obeyed(patch: Patch) -> None:
    elected = Acceptor._elected

    def obedient(self: Acceptor, connection: int, message: Elected) -> Actions:
        if message.node_id < self.control.promised:
            self.control = replace(self.control, promised=message.node_id)
        return elected(self, connection, message)

    patch(Acceptor, "_elected", obedient)


@plant
def elected_of_a_rival_obeyed(patch: Patch) -> None:
    """Only the terms of the ballots are compared."""
    elected = Acceptor._elected

    def by_term_alone(self: Acceptor, connection: int, message: Elected) -> Actions:
        promised = self.control.promised
        if message.node_id < promised and message.node_id.term == promised.term:
            self.control = replace(self.control, promised=message.node_id)
        return elected(self, connection, message)

    patch(Acceptor, "_elected", by_term_alone)


@plant
def second_elected_of_a_ballot_not_compared(patch: Patch) -> None:
    """And the proposer sends a returning peer only the older timeline."""
    follow = Leader.follow
    told: dict[int, set[int]] = {}

    def forgetful(self: Leader, progress: Progress) -> list[Any]:
        peers = told.setdefault(id(self), set())
        term = self.term
        if progress.peer in peers:
            self.term = replace(term, tli_history=older(term.tli_history))
        peers.add(progress.peer)
        try:
            return follow(self, progress)
        finally:
            self.term = term

    patch(Leader, "follow", forgetful)
    patch(quorum_wal.safekeeper.refusals, "_other_history", lambda control, elected, flush_lsn: "")


def older(history: TimelineHistory) -> TimelineHistory:
    """The history of the previous timeline, which is equal below the last switch."""
    if not history.entries:
        return history
    *before, last = history.entries
    return TimelineHistory(last.tli, tuple(before))


@plant
def history_not_adopted(patch: Patch) -> None:
    elected = Acceptor._elected

    def stubborn(self: Acceptor, connection: int, message: Elected) -> Actions:
        history = self.control.term_history
        actions = elected(self, connection, message)
        self.control = replace(self.control, term_history=history)
        return [
            PersistControl(self.control) if isinstance(a, PersistControl) else a for a in actions
        ]

    patch(Acceptor, "_elected", stubborn)


@plant
def history_adopted_in_memory_only(patch: Patch) -> None:
    patch(Acceptor, "_elected", without(PersistControl, Acceptor._elected))


@plant
def history_persisted_before_the_truncation(patch: Patch) -> None:
    elected = Acceptor._elected
    patch(
        Acceptor,
        "_elected",
        lambda *args: sorted(elected(*args), key=lambda a: isinstance(a, TruncateWal)),
    )


@plant
def no_truncation(patch: Patch) -> None:
    """Both sides continue at the start of the term, whatever WAL is below it."""

    def from_term_start(proposer: TermHistory, _: TermHistory, flush_lsn: int) -> int:
        return min(proposer.entries[-1].start_lsn, flush_lsn)

    patch(quorum_wal.walproposer.stream.leader, "highest_common_point", from_term_start)
    patch(quorum_wal.safekeeper.refusals, "highest_common_point", from_term_start)


@plant
def truncation_never_reaches_the_disk(patch: Patch) -> None:
    patch(Disk, "truncate", lambda self, end_lsn: None)


@plant
def truncation_below_commit(patch: Patch) -> None:
    """Both sides go back to the start of the last common ballot, without an error."""

    def too_low(proposer: TermHistory, keeper: TermHistory, _: int) -> int:
        common = [e for e in keeper.entries if e in proposer.entries]
        return common[-1].start_lsn

    problem = quorum_wal.safekeeper.refusals._parting

    def no_objection(control: Any, elected: Elected, flush_lsn: int, commit_lsn: int) -> str:
        return problem(control, elected, flush_lsn, 0)

    def without_assert(self: Acceptor, connection: int, elected: Elected) -> Actions:
        self.commit_lsn = min(self.commit_lsn, elected.start_streaming_at)
        return step(self, connection, elected)

    step = Acceptor._elected
    patch(quorum_wal.walproposer.stream.leader, "highest_common_point", too_low)
    patch(quorum_wal.safekeeper.refusals, "highest_common_point", too_low)
    patch(quorum_wal.safekeeper.refusals, "_parting", no_objection)
    patch(Acceptor, "_elected", without_assert)


# ---- appends and answers


@plant
def answer_before_the_fsync(patch: Patch) -> None:
    patch(Acceptor, "_flush", without(FlushWal, Acceptor._flush))


@plant
def append_of_a_lower_ballot_accepted(patch: Patch) -> None:
    append = Acceptor._append

    def accepts(self: Acceptor, connection: int, message: Append) -> Actions:
        if message.node_id < self.control.promised and message.begin_lsn == self.written_lsn:
            self.streaming = connection
            message = msgspec.structs.replace(message, node_id=self.control.promised)
        return append(self, connection, message)

    patch(Acceptor, "_append", accepts)


@plant
def stale_connection_accepted(patch: Patch) -> None:
    append = Acceptor._append

    def accepts(self: Acceptor, connection: int, message: Append) -> Actions:
        if message.node_id == self.control.promised:
            self.streaming = connection
        return append(self, connection, message)

    patch(Acceptor, "_append", accepts)


@plant
def append_accepted_wherever_it_begins(patch: Patch) -> None:
    append = Acceptor._append

    def accepts(self: Acceptor, connection: int, message: Append) -> Actions:
        if connection == self.streaming and message.begin_lsn > self.written_lsn:
            self.written_lsn = message.begin_lsn
        return append(self, connection, message)

    patch(Acceptor, "_append", accepts)


@plant
def flush_lsn_inside_a_record(patch: Patch) -> None:
    flush = Acceptor._flush

    def everything(self: Acceptor) -> Actions:
        actions = flush(self)
        self.flush_lsn = self.record_end_lsn = self.durable_lsn
        return actions

    patch(Acceptor, "_flush", everything)


@plant
def commit_lsn_beyond_flush_lsn(patch: Patch) -> None:
    def advance(self: Acceptor) -> None:
        self.commit_lsn = max(self.commit_lsn, self.sent_commit_lsn)

    patch(Acceptor, "_advance_commit", advance)


@plant
def commit_lsn_assigned_instead_of_max(patch: Patch) -> None:
    def advance(self: Acceptor) -> None:
        self.commit_lsn = min(self.sent_commit_lsn, self.flush_lsn)

    patch(Acceptor, "_advance_commit", advance)


@plant
def truncate_lsn_assigned_instead_of_max(patch: Patch) -> None:
    append = Acceptor._append

    def assigns(self: Acceptor, connection: int, message: Append) -> Actions:
        written_lsn = self.written_lsn
        actions = append(self, connection, message)
        if self.written_lsn != written_lsn or not actions:
            self.truncate_lsn = message.truncate_lsn
        return actions

    patch(Acceptor, "_append", assigns)


# ---- a donor's stream


@plant
def donor_checks_no_promise_before_a_read(patch: Patch) -> None:
    patch(DonorRule, "limit_lsn", lambda self: self._look()[1])


@plant
def donor_checks_no_promise_after_a_read(patch: Patch) -> None:
    patch(DonorRule, "checked", lambda self, wal: wal)


# ---- the end of the log


@plant
def end_of_log_without_crc(patch: Patch) -> None:
    walker = partial(RecordWalker, check_crc=False)
    patch(quorum_wal.pgwal.end_of_wal, "RecordWalker", walker)


@plant
def end_of_log_before_the_last_record(patch: Patch) -> None:
    find = quorum_wal.pgwal.end_of_wal.find_end_of_wal

    def short(*args: Any, **options: Any) -> EndOfWal:
        end = find(*args, **options)
        return EndOfWal(Lsn(end.last_record_lsn or end.end_lsn), end.last_record_lsn, end.reason)

    patch(quorum_wal.pgwal.end_of_wal, "find_end_of_wal", short)


@plant
def boundary_is_where_the_message_ends(patch: Patch) -> None:
    def feed(self: BoundaryFinder, begin_lsn: int, data: bytes) -> int:
        self.end_lsn = self.record_end_lsn = begin_lsn + len(data)
        return self.end_lsn

    patch(BoundaryFinder, "feed", feed)
