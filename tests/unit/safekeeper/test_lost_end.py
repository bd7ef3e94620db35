"""Damage of the log's end differs from a torn tail: the member grants no vote until repaired."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from acceptor_steps import MEMBERS, A, C, append, elected, history, vote_request
from new_timeline import INSTANCE, new_control_state
from timeline_on_disk import Pusher, filled_timeline, flip, leading_pusher, load_timeline, log_of
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.messages import VoteResponse
from quorum_wal.consensus.term_history import TermHistory
from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.safekeeper.acceptor import Acceptor
from quorum_wal.safekeeper.control_file import ControlFile
from quorum_wal.safekeeper.events import BatchEnded, PersistControl, Reply
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState

END_LSN = START_LSN + 1000
LOST_LSN = START_LSN + 3000


def wal_of(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in sorted((folder / "wal").iterdir())}


def saved_by_the_vote(folder: Path, log: WalLog) -> None:
    """The power fails after a vote, which saved the end of the log."""
    pusher = leading_pusher(folder)
    pusher.log = log
    pusher.push()
    voter = Pusher(pusher.timeline, number=2, node_id=C)
    voter.timeline.connect(voter)
    voter.vote()


def saved_by_housekeeping(folder: Path, log: WalLog) -> None:
    """The power fails some seconds after the last answer."""
    pusher = leading_pusher(folder)
    pusher.log = log
    pusher.push()
    pusher.timeline.save_positions()


def saved_by_an_orderly_end(folder: Path, log: WalLog) -> None:
    filled_timeline(folder, log)


Ending = Callable[[Path, WalLog], None]
ENDINGS: list[Ending] = [saved_by_the_vote, saved_by_housekeeping, saved_by_an_orderly_end]


@pytest.mark.parametrize("end", ENDINGS)
def test_damage_above_the_commit_is_no_torn_tail(tmp_path: Path, end: Ending) -> None:
    log = log_of(1_500_000)
    end(tmp_path, log)
    flip(tmp_path, log.ends[-3] - 100)
    before = wal_of(tmp_path)
    timeline = load_timeline(tmp_path)
    assert timeline.positions.flush_lsn == log.ends[-4]
    assert timeline.control.lost_lsn == log.lsn
    assert ControlFile.read(tmp_path).state.lost_lsn == log.lsn, "before anybody is answered"
    assert wal_of(tmp_path) == before, "it is evidence, and may be all that is left"


@pytest.mark.parametrize("end", ENDINGS)
def test_a_page_that_names_another_timeline_is_found(tmp_path: Path, end: Ending) -> None:
    """No checksum covers it, and no record shows it: also in the last page of the log."""
    log = log_of(1_500_000)
    end(tmp_path, log)
    page_lsn = log.lsn - log.lsn % WAL_PAGE_SIZE
    flip(tmp_path, page_lsn + 4)
    timeline = load_timeline(tmp_path)
    assert timeline.positions.flush_lsn <= page_lsn
    assert timeline.control.lost_lsn == log.lsn


def test_a_last_segment_that_is_missing_is_a_lost_end(tmp_path: Path) -> None:
    """The log ends at the last whole record before, which began in an older segment."""
    log = log_of(2_500_000, record_bytes=700_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    last_lsn = log.lsn - log.lsn % WAL_SEG_SIZE
    (tmp_path / "wal" / f"{1:08X}{0:08X}{last_lsn // WAL_SEG_SIZE:08X}").unlink()
    timeline = load_timeline(tmp_path)
    ends = [lsn for lsn in log.ends if lsn <= last_lsn]
    assert timeline.positions.flush_lsn == max(ends)
    assert timeline.control.lost_lsn == log.lsn


def test_it_follows_without_a_vote_and_votes_when_it_is_repaired(tmp_path: Path) -> None:
    """Also with damage below the commit; a restart meanwhile changes nothing."""
    log = log_of(1_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    flip(tmp_path, log.ends[-3] - 100)
    timeline = load_timeline(tmp_path)
    for _ in range(2):
        assert not vote_of(timeline).granted
        timeline = load_timeline(tmp_path)
    follow(timeline, log)
    assert timeline.control.lost_lsn == log.lsn, "it follows, but nothing has come back yet"
    timeline = load_timeline(tmp_path)
    assert not vote_of(timeline).granted
    follow(timeline, log).push(commit_lsn=log.lsn)
    assert timeline.control.lost_lsn == 0
    assert timeline.positions.commit_lsn == log.lsn
    assert vote_of(load_timeline(tmp_path)).granted


def vote_of(timeline: Timeline) -> VoteResponse:
    """It promises like any other member."""
    assert timeline.state is TimelineState.ACTIVE
    voter = Pusher(timeline, number=9, node_id=C)
    timeline.connect(voter)
    vote = voter.vote()
    timeline.disconnect(voter)
    assert vote.promised == C
    assert vote.flush_lsn == timeline.positions.flush_lsn
    return vote


def follow(timeline: Timeline, log: WalLog) -> Pusher:
    """C leads: its term begins where the whole log ends."""
    terms = history((A, START_LSN), (C, log.lsn))
    leader = Pusher(timeline, number=10, node_id=C, log=log, terms=terms)
    leader.lead(timeline.positions.flush_lsn)
    assert timeline.positions.written_lsn == timeline.positions.flush_lsn
    return leader


# ---- the core alone


def lost_acceptor() -> Acceptor:
    control = replace(
        new_control_state(MEMBERS), promised=A, flush_lsn=LOST_LSN, lost_lsn=LOST_LSN,
        term_history=history((A, START_LSN)),
    )  # fmt: skip
    return Acceptor(1, INSTANCE, control, END_LSN)


def following(terms: TermHistory) -> Acceptor:
    acceptor = lost_acceptor()
    node_id = terms.entries[-1].node_id
    acceptor.step(vote_request(node_id))
    acceptor.step(elected(node_id, END_LSN, terms))
    assert acceptor.streaming == 1
    return acceptor


def is_whole_after(acceptor: Acceptor, length: int, commit_lsn: int = 0) -> bool:
    node_id = acceptor.control.promised
    acceptor.step(append(node_id, acceptor.written_lsn, length, commit_lsn=commit_lsn))
    actions = acceptor.step(BatchEnded(1))
    persisted = [a.state for a in actions if isinstance(a, PersistControl)]
    assert [state.lost_lsn for state in persisted] == [0] * len(persisted)
    assert isinstance(actions[-1], Reply), "it is whole on disk before anybody hears of it"
    return bool(persisted)


def test_rule_9_a_newer_ballot_needs_the_start_of_its_term() -> None:
    """It was elected without this member, so it has everything that was committed before."""
    acceptor = following(history((A, START_LSN), (C, LOST_LSN + 500)))
    assert not is_whole_after(acceptor, 0)
    assert not is_whole_after(acceptor, LOST_LSN - END_LSN)
    assert is_whole_after(acceptor, 500)


def test_rule_9_the_same_ballot_needs_its_commit_too() -> None:
    """It may have counted the lost WAL for a commit before it knew of the loss."""
    acceptor = following(history((A, START_LSN)))
    assert not is_whole_after(acceptor, 0, commit_lsn=LOST_LSN)
    assert not is_whole_after(acceptor, LOST_LSN - END_LSN - 8)
    assert is_whole_after(acceptor, 8)


def test_rule_9_without_the_leaders_commit_it_is_not_whole() -> None:
    acceptor = following(history((A, START_LSN)))
    assert acceptor.flush_lsn >= START_LSN
    assert not [a for a in acceptor.step(BatchEnded(1)) if isinstance(a, PersistControl)]
    assert acceptor.control.lost_lsn == LOST_LSN


def test_a_loss_that_grows_is_remembered_whole() -> None:
    control = lost_acceptor().control
    assert control.found_to_end(START_LSN).lost_lsn == LOST_LSN
    refilled = replace(control, flush_lsn=LOST_LSN + 800)
    assert refilled.found_to_end(LOST_LSN).lost_lsn == LOST_LSN + 800
