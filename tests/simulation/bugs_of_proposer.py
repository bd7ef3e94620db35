"""Planted bugs of the proposer: elections, the check of the primary, commit, catch-up.

Each is a mistake that an implementation of the law could make, or has made.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

import quorum_wal.walproposer.stream.candidacy
import quorum_wal.walproposer.stream.leader
import quorum_wal.walproposer.stream.proposer
import quorum_wal.walproposer.stream.tail_check
from quorum_wal.consensus.messages import Append, Elected, VoteResponse
from quorum_wal.consensus.quorum import quorum_lsn
from quorum_wal.walproposer.stream.events import ReportFlushed, Send
from quorum_wal.walproposer.stream.leader import Leader
from quorum_wal.walproposer.stream.progress import Progress
from quorum_wal.walproposer.stream.proposer import Proposer
from quorum_wal.walproposer.stream.wal_window import WalWindow

from .planting import Patch, plant

# ---- elections


@plant
def elected_by_half_of_the_members(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.candidacy,
        "has_quorum",
        lambda membership, ids: len(ids) >= len(membership.members) // 2,
    )


@plant
def one_uuid_for_all_incarnations(patch: Patch) -> None:
    init = Proposer.__init__

    def same(self: Proposer, candidacy: Any, primary: Any) -> None:
        init(self, replace(candidacy, proposer_uuid=b"x" * 16), primary)

    patch(Proposer, "__init__", same)


@plant
def donor_by_position_first(patch: Patch) -> None:
    def choose(votes: dict[int, VoteResponse]) -> int:
        return max(votes, key=lambda p: (votes[p].flush_lsn, votes[p].last_log_node_id))

    patch(quorum_wal.walproposer.stream.proposer, "choose_donor", choose)


@plant
def donor_is_the_first_to_answer(patch: Patch) -> None:
    patch(quorum_wal.walproposer.stream.proposer, "choose_donor", lambda votes: min(votes))


@plant
def primary_s_tail_not_compared(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.tail_check,
        "tail_problem",
        lambda begin_lsn, ours, donors: None,
    )


@plant
def primary_s_end_not_checked(patch: Patch) -> None:
    patch(quorum_wal.walproposer.stream.proposer, "behind_problem", lambda flush_lsn, end_lsn: None)


@plant
def primary_not_checked_at_all(patch: Patch) -> None:
    primary_s_tail_not_compared(patch)
    patch(quorum_wal.walproposer.stream.proposer, "fork_problem", lambda primary, vote: None)


@plant
def primary_s_timelines_not_compared(patch: Patch) -> None:
    patch(quorum_wal.walproposer.stream.proposer, "fork_problem", lambda primary, vote: None)


@plant
def greater_ballot_in_a_vote_is_only_a_refusal(patch: Patch) -> None:
    vote = Proposer._vote

    def refused(self: Proposer, progress: Progress, message: VoteResponse) -> list[Any]:
        if self._is_fenced_by(progress, message.promised):
            return progress.close("vote refused")
        return vote(self, progress, message)

    patch(Proposer, "_vote", refused)


# ---- leading


@plant
def each_follower_gets_its_own_timelines(patch: Patch) -> None:
    """It gets the history of its vote, and not that of the primary."""
    follow = Leader.follow

    def own(self: Leader, progress: Progress) -> list[Any]:
        assert progress.vote is not None
        theirs = progress.vote.tli_history
        return [
            Send(a.peer, replace(a.message, tli_history=theirs))
            if isinstance(a, Send) and isinstance(a.message, Elected)
            else a
            for a in follow(self, progress)
        ]

    patch(Leader, "follow", own)


@plant
def commit_without_the_term_start_rule(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.leader,
        "committed_lsn",
        lambda members, lsns, _: quorum_lsn(members, lsns),
    )


@plant
def commit_at_the_least_member(patch: Patch) -> None:
    """The minimum instead of the position of the quorum."""

    def least(membership: Any, lsns: dict[int, int], term_start_lsn: int) -> int:
        lsn = min(lsns.get(member, 0) for member in membership.members)
        return lsn if lsn >= term_start_lsn else 0

    patch(quorum_wal.walproposer.stream.leader, "committed_lsn", least)


@plant
def commit_at_the_greatest_member(patch: Patch) -> None:
    def greatest(_: Any, lsns: dict[int, int], term_start_lsn: int) -> int:
        lsn = max(lsns.values(), default=0)
        return lsn if lsn >= term_start_lsn else 0

    patch(quorum_wal.walproposer.stream.leader, "committed_lsn", greatest)


@plant
def votes_count_as_answers(patch: Patch) -> None:
    vote = Proposer._vote

    def counted(self: Proposer, progress: Progress, message: VoteResponse) -> list[Any]:
        actions = vote(self, progress, message)
        progress.flush_lsn = max(progress.flush_lsn, message.flush_lsn)
        return actions

    patch(Proposer, "_vote", counted)


@plant
def a_member_counts_after_it_lost_its_data(patch: Patch) -> None:
    patch(Progress, "lose_data", lambda self: None)


@plant
def commit_by_durable_lsn(patch: Patch) -> None:
    update = Progress.maybe_update

    def durable(self: Progress, response: Any) -> bool:
        response = msgspec.structs.replace(response, flush_lsn=response.durable_lsn)
        return update(self, response)

    patch(Progress, "maybe_update", durable)


@plant
def sent_wal_reported_to_the_primary(patch: Patch) -> None:
    advance = Leader._advance_commit

    def sent(self: Leader) -> list[Any]:
        return [
            ReportFlushed(self.window.record_end_lsn) if isinstance(a, ReportFlushed) else a
            for a in advance(self)
        ]

    patch(Leader, "_advance_commit", sent)


@plant
def truncate_lsn_of_the_greatest_member(patch: Patch) -> None:
    def advance(self: Leader) -> None:
        self.truncate_lsn = max(self.truncate_lsn, self.commit_lsn)

    patch(Leader, "_advance_truncate", advance)


@plant
def all_streamed_from_the_term_start(patch: Patch) -> None:
    patch(
        quorum_wal.walproposer.stream.leader,
        "highest_common_point",
        lambda proposer, keeper, flush_lsn: proposer.entries[-1].start_lsn,
    )


@plant
def catch_up_begins_inside_a_record(patch: Patch) -> None:
    patch(Progress, "is_inside_record", False)


@plant
def window_drops_wal_that_no_quorum_has(patch: Patch) -> None:
    trim = WalWindow.trim
    patch(WalWindow, "trim", lambda self, durable_lsn: trim(self, self.end_lsn))
    patch(Leader, "_maybe_stuck", lambda self: [])


@plant
def idle_log_never_committed_on_safekeepers(patch: Patch) -> None:
    patch(Leader, "spread_commit", lambda self: [])
    patch(Leader, "heartbeat", lambda self, p: self._send(p, silent(self, p)))


@plant
def last_message_reports_wal_that_was_only_sent(patch: Patch) -> None:
    stopping = Proposer._stopping

    def sent(self: Proposer) -> list[Any]:
        if self.leader is not None:
            self.leader.commit_lsn = self.leader.window.record_end_lsn
        return stopping(self)

    patch(Proposer, "_stopping", sent)


def silent(leader: Leader, progress: Progress) -> Append:
    append = leader._append(progress.next_lsn, b"", 0)
    return msgspec.structs.replace(append, commit_lsn=0)
