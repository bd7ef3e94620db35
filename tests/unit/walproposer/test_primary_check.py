"""The proposer's rule 3: no primary continues a log whose acknowledged commits it lacks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from proposer_steps import (
    PRIMARY,
    answer,
    campaigning,
    greet,
    of_kind,
    sent,
    the_stop,
    vote,
)
from wal_log import PAGE_SIZE, START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.consensus.messages import Append, Elected
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.walproposer.stream.events import (
    Outcome,
    PeerLost,
    ReadTail,
    StartUpstream,
    TailRead,
    UpstreamStarted,
    WalReceived,
)
from quorum_wal.walproposer.stream.proposer import Proposer, State
from quorum_wal.walproposer.stream.wal_window import APPEND_BYTES_MAX

MIB = 1024 * 1024


def log_of(records: int = 10, record_bytes: int = 600) -> WalLog:
    log = WalLog()
    for number in range(records):
        log.append(f"R{number}", record_bytes)
    return log


LOG = log_of()


def tli_history(tli: int, *switches: tuple[int, int]) -> TimelineHistory:
    return TimelineHistory.parse(tli, "".join(f"{old}\t0/{lsn:X}\tno\n" for old, lsn in switches))


def checking(log: WalLog = LOG, **primary: Any) -> Proposer:
    """Elected on a log that two members have completely; its primary must pass the check."""
    proposer = campaigning(primary=replace(PRIMARY, **primary))
    vote(proposer, 0, log.lsn)
    actions = vote(proposer, 1, log.lsn)
    assert of_kind(actions, StartUpstream)
    assert proposer.state is State.CHECKING
    return proposer


# ---- what is asked for


def test_rule_3_the_tail_of_both_is_read() -> None:
    proposer = campaigning()
    vote(proposer, 0, LOG.lsn)
    read, start = vote(proposer, 1, LOG.lsn)
    assert read == ReadTail(0, START_LSN, LOG.lsn)
    assert start == StartUpstream(START_LSN)


def test_what_came_during_the_check_is_sent_in_parts() -> None:
    """However slow the donor was: every safekeeper would refuse one Append of all of it,
    forever."""
    log = log_of()
    tail_bytes = len(log.wal)
    proposer = checking(log)
    for number in range(5):
        log.append(f"later {number}", 400_000)
    wal, ends = bytes(log.wal), {START_LSN + tail_bytes, *log.ends}
    proposer.step(UpstreamStarted(log.lsn))
    assert not proposer.step(WalReceived(START_LSN, wal))
    actions, lsn = proposer.step(TailRead(wal[:tail_bytes])), START_LSN + tail_bytes
    while lsn < log.lsn:
        appends = [append for peer, append in sent(actions, Append) if peer == 0]
        assert appends
        for append in appends:
            assert append.begin_lsn == lsn
            assert append.wal == wal[lsn - START_LSN :][: len(append.wal)]
            assert len(append.wal) <= APPEND_BYTES_MAX
            assert append.record_end_lsn in ends
            lsn = append.end_lsn
        actions = answer(proposer, 0, lsn)


def test_rule_3_nothing_is_sent_before_the_check_is_passed() -> None:
    proposer = campaigning((0, 1, 2))
    for peer in (0, 1, 2):
        assert not sent(vote(proposer, peer, LOG.lsn), Elected)
    assert not sent(proposer.step(UpstreamStarted(LOG.lsn)), Elected)
    assert not sent(proposer.step(WalReceived(START_LSN, bytes(LOG.wal))), Elected)
    actions = proposer.step(TailRead(bytes(LOG.wal)))
    assert [peer for peer, _ in sent(actions, Elected)] == [0, 1, 2]
    assert proposer.state is State.LEADING


def test_an_empty_log_needs_no_comparison() -> None:
    proposer = campaigning()
    vote(proposer, 0)
    actions = vote(proposer, 1)
    assert not of_kind(actions, ReadTail)
    assert len(sent(actions, Elected)) == 2


# ---- behind


@pytest.mark.parametrize("missing", [1, 600, 5000])
def test_rule_3_a_primary_whose_wal_ends_below_the_log_is_refused(missing: int) -> None:
    stop = the_stop(checking().step(UpstreamStarted(LOG.lsn - missing)))
    assert stop.outcome is Outcome.REFUSED
    assert stop.message == (
        f"the primary's WAL ends at 0/{LOG.lsn - missing:X}, "
        f"but the quorum's log ends at 0/{LOG.lsn:X}"
    )
    assert "lacks acknowledged commits" in stop.hint


@pytest.mark.parametrize("more", [0, 1, MIB])
def test_a_primary_that_has_the_log_or_more_is_not_behind(more: int) -> None:
    assert checking().step(UpstreamStarted(LOG.lsn + more)) == []


# ---- forked


@pytest.mark.parametrize(
    ("primary", "quorum", "fork"),
    [
        (tli_history(2, (1, LOG.lsn - 8)), tli_history(1), LOG.lsn - 8),
        (tli_history(1), tli_history(2, (1, LOG.lsn - 8)), LOG.lsn - 8),
        (tli_history(3, (1, START_LSN)), tli_history(2, (1, START_LSN)), START_LSN),
        (tli_history(2, (1, START_LSN + 64)), tli_history(2, (1, START_LSN + 128)), START_LSN + 64),
    ],
    ids=["the primary left", "the primary stayed", "two children", "two switches"],
)
def test_rule_3_a_primary_that_forked_below_the_end_is_refused(
    primary: TimelineHistory, quorum: TimelineHistory, fork: int
) -> None:
    proposer = campaigning(primary=replace(PRIMARY, tli_history=primary))
    vote(proposer, 0, LOG.lsn, tli_history=quorum)
    stop = the_stop(vote(proposer, 1, LOG.lsn, tli_history=quorum))
    assert stop.outcome is Outcome.REFUSED
    assert f"diverge at 0/{fork:X}, but the quorum's log ends at 0/{LOG.lsn:X}" in stop.message
    assert "pg_rewind" in stop.hint


@pytest.mark.parametrize(
    "primary",
    [
        tli_history(2, (1, LOG.lsn)),
        tli_history(2, (1, LOG.lsn + MIB)),
        tli_history(7, (1, LOG.lsn)),
    ],
)
def test_rule_8_a_promotion_at_or_above_the_end_begins_with_the_term(
    primary: TimelineHistory,
) -> None:
    proposer = checking(tli_history=primary)
    proposer.step(WalReceived(START_LSN, bytes(LOG.wal)))
    actions = proposer.step(TailRead(bytes(LOG.wal)))
    assert {message.tli_history for _, message in sent(actions, Elected)} == {primary}


def test_a_switch_that_the_log_has_not_reached_has_no_effect() -> None:
    """Its leader was elected, and nothing of it was ever written."""
    ahead = tli_history(2, (1, LOG.lsn))
    proposer = campaigning()
    vote(proposer, 0, LOG.lsn, tli_history=ahead)
    assert of_kind(vote(proposer, 1, LOG.lsn, tli_history=ahead), StartUpstream)


# ---- other bytes


@pytest.mark.parametrize("offset", [0, 1, 3000, len(LOG.wal) - 1])
def test_rule_3_other_bytes_are_refused_whichever_comes_first(offset: int) -> None:
    """Equal ids, timelines and positions do not prove equal bytes."""
    other = bytearray(LOG.wal)
    other[offset] ^= 1
    tail, wal = TailRead(bytes(LOG.wal)), WalReceived(START_LSN, bytes(other))
    for first, second in ((tail, wal), (wal, tail)):
        proposer = checking()
        assert proposer.step(first) == []
        stop = the_stop(proposer.step(second))
        assert stop.outcome is Outcome.REFUSED
        assert stop.message == (
            f"the primary's WAL differs from the quorum's log at 0/{START_LSN + offset:X}, "
            f"below the log's end at 0/{LOG.lsn:X}"
        )
        assert "restored from a snapshot" in stop.hint


def test_other_bytes_above_the_end_are_news_not_a_difference() -> None:
    longer = LOG.cut(LOG.lsn)
    longer.append("new")
    proposer = checking()
    proposer.step(TailRead(bytes(LOG.wal)))
    actions = proposer.step(WalReceived(START_LSN, bytes(longer.wal)))
    assert [(peer, m.begin_lsn, m.end_lsn) for peer, m in sent(actions, Append)] == [
        (0, LOG.lsn, longer.lsn),
        (1, LOG.lsn, longer.lsn),
    ]


@pytest.mark.parametrize("cut", ["records", "pages", "both"])
def test_the_primary_brings_its_tail_in_any_pieces_a_walsender_cuts(cut: str) -> None:
    longer = LOG.cut(LOG.lsn)
    longer.append("new", 30_000)
    ends = set(longer.ends) if cut != "pages" else {longer.lsn}
    if cut != "records":
        ends |= set(range(START_LSN + PAGE_SIZE, longer.lsn, PAGE_SIZE))
    proposer = checking()
    proposer.step(TailRead(bytes(LOG.wal)))
    actions = []
    begin_lsn = START_LSN
    for end_lsn in sorted(ends):
        actions += proposer.step(WalReceived(begin_lsn, longer.read(begin_lsn, end_lsn)))
        begin_lsn = end_lsn
    assert proposer.state is State.LEADING
    news = b"".join(m.wal for peer, m in sent(actions, Append) if peer == 0)
    assert news == longer.read(LOG.lsn, longer.lsn)


def test_the_primary_is_not_read_further_while_its_check_waits() -> None:
    """The WAL above the log is of no use yet, and there may be gigabytes of it."""
    proposer = checking()
    assert proposer.wants_wal()
    proposer.step(WalReceived(START_LSN, bytes(LOG.wal)))
    assert not proposer.wants_wal()
    proposer.step(TailRead(bytes(LOG.wal)))
    assert proposer.wants_wal()


def test_wal_that_cannot_be_wal_stops_the_incarnation() -> None:
    proposer = checking()
    proposer.step(TailRead(bytes(LOG.wal)))
    proposer.step(WalReceived(START_LSN, bytes(LOG.wal)))
    end_of_page = -LOG.lsn % 8192
    stop = the_stop(proposer.step(WalReceived(LOG.lsn, b"\xff" * end_of_page)))
    assert stop.outcome is Outcome.REFUSED
    assert "invalid WAL" in stop.message


# ---- the donor goes away


def test_a_donor_that_is_lost_while_it_is_read_restarts_the_election() -> None:
    stop = the_stop(checking().step(PeerLost(0, "power failed")))
    assert stop.outcome is Outcome.RESTART
    assert "lost the donor while checking: power failed" in stop.message


def test_another_member_that_is_lost_does_not() -> None:
    proposer = checking()
    assert proposer.step(PeerLost(1, "power failed")) == []
    assert proposer.state is State.CHECKING


def test_a_donor_that_is_lost_after_its_tail_was_read_does_not() -> None:
    proposer = checking()
    proposer.step(TailRead(bytes(LOG.wal)))
    assert proposer.step(PeerLost(0, "power failed")) == []
    proposer.step(WalReceived(START_LSN, bytes(LOG.wal)))
    assert proposer.state is State.LEADING
    assert proposer.leader is not None
    greet(proposer, 0, proposer.leader.term.node_id)
    assert sent(vote(proposer, 0, LOG.lsn), Elected)
    answer(proposer, 1, LOG.lsn)
    answer(proposer, 0, LOG.lsn)
    assert proposer.commit_lsn == LOG.lsn


def test_a_tail_that_came_short_restarts_the_election() -> None:
    proposer = checking()
    proposer.step(WalReceived(START_LSN, bytes(LOG.wal)))
    assert the_stop(proposer.step(TailRead(bytes(LOG.wal[:-1])))).outcome is Outcome.RESTART


# ---- where the comparison begins

END = START_LSN + 5 * WAL_SEG_SIZE + 1000


@pytest.mark.parametrize(
    ("end_lsn", "primary", "begin_lsn"),
    [
        (END, {}, END - MIB),
        (START_LSN + 500, {}, START_LSN),
        (END, {"slot_lsn": END - 500}, END - 1000),
        (END, {"slot_lsn": END + 4 * MIB}, END - 1000),
        (END, {"tli_history": tli_history(2, (1, END - 300))}, END - 1000),
        (END, {"tli_history": tli_history(2, (1, END + 300))}, END - MIB),
        (START_LSN + 5 * MIB, {}, START_LSN + 4 * MIB),
        (START_LSN + 5 * MIB, {"slot_lsn": START_LSN + 5 * MIB}, START_LSN + 5 * MIB),
    ],
    ids=[
        "1 MiB",
        "a short log",
        "the slot holds its segment",
        "a new slot",
        "a switch in the segment",
        "a switch above the end",
        "a full segment",
        "a slot that confirmed just this log",
    ],
)
def test_the_tail_begins_where_both_surely_have_the_wal(
    end_lsn: int, primary: dict[str, Any], begin_lsn: int
) -> None:
    proposer = campaigning(primary=replace(PRIMARY, **primary))
    tlis = primary.get("tli_history", TimelineHistory(1))
    vote(proposer, 0, end_lsn, tli_history=tlis)
    actions = vote(proposer, 1, end_lsn, tli_history=tlis)
    assert of_kind(actions, StartUpstream) == [StartUpstream(begin_lsn)]
    reads = of_kind(actions, ReadTail)
    assert reads == ([ReadTail(0, begin_lsn, end_lsn)] if begin_lsn < end_lsn else [])
