"""A truncation on a real disk, interrupted after each step that reaches it.


An old leader's log spans three segments. A new one cuts it far below, adopts, and streams. The
process dies after the k-th call into `storage/durable.py`, for every k. The state found then must
be true of the log, and a repetition must lead to the same end state.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from acceptor_steps import A, C, history
from timeline_on_disk import Pusher, filled_timeline, load_timeline
from wal_log import START_LSN, WalLog, named_records

from quorum_wal.consensus.term_history import highest_common_point
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState
from quorum_wal.storage import durable

STEPS = (
    "sync_directory",
    "sync_file",
    "sync_data",
    "write_all",
    "replace_file",
    "publish_file",
    "create_zeroed",
    "create_allocated",
    "zero_range",
    "remove_file",
    "make_directory",
)
#: More than the takeover below has; every greater k runs to the end.
STEPS_MAX = 80


class ProcessDied(BaseException):
    """Not an Exception: no handler on the way may catch it."""


def die_after(patch: pytest.MonkeyPatch, steps: int) -> None:
    """Every call is made; the one after the last `steps` never begins."""
    left = [steps]
    for name in STEPS:
        real = getattr(durable, name)

        def counted(*args: Any, real: Any = real) -> Any:
            if left[0] == 0:
                raise ProcessDied
            left[0] -= 1
            return real(*args)

        patch.setattr(durable, name, counted)


def old_log() -> WalLog:
    log = WalLog()
    while log.lsn < START_LSN + 2_300_000:
        log.append(f"old{len(log.ends)}", 50_000)
    return log


def take_over(timeline: Timeline, new: WalLog, term_start_lsn: int, number: int) -> None:
    """The side of a leader of ballot C, whose log diverges from the old one at `term_start_lsn`."""
    terms = history((A, START_LSN), (C, term_start_lsn))
    pusher = Pusher(timeline, number, C, new, terms=terms)
    timeline.connect(pusher)
    vote = pusher.vote()
    assert vote.granted
    check_true_of_itself(timeline, vote.term_history.entries[-1].node_id)
    point = highest_common_point(terms, vote.term_history, vote.flush_lsn)
    pusher = Pusher(timeline, number + 1, C, new, terms=terms).lead(point)
    assert pusher.push().flush_lsn == new.lsn


def check_true_of_itself(timeline: Timeline, last_ballot: object) -> None:
    """The bytes are the old leader's and the new one's, as the history says; they end at a
    record."""
    flush_lsn = timeline.positions.flush_lsn
    records = named_records(read(timeline, flush_lsn))
    assert (records[-1].end_lsn if records else START_LSN) == flush_lsn
    is_new = bool(records) and records[-1].name.startswith("new")
    assert not is_new or last_ballot == C


def read(timeline: Timeline, end_lsn: int) -> bytes:
    wal = bytearray()
    while START_LSN + len(wal) < end_lsn:
        lsn = START_LSN + len(wal)
        wal += timeline.store.read(lsn, end_lsn - lsn)
    return bytes(wal)


def test_a_takeover_interrupted_after_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = old_log()
    cut_lsn = old.ends[15]
    new = old.cut(cut_lsn)
    new.append("new1", 600_000)
    new.append("new2")
    untouched = tmp_path / "untouched"
    untouched.mkdir()
    filled_timeline(untouched, old, commit_lsn=old.ends[5])
    interrupted = 0
    for steps in range(STEPS_MAX):
        folder = tmp_path / str(steps)
        shutil.copytree(untouched, folder)
        timeline = load_timeline(folder)
        with monkeypatch.context() as patch:
            die_after(patch, steps)
            try:
                take_over(timeline, new, cut_lsn, number=10)
            except ProcessDied:
                interrupted += 1
        again = load_timeline(folder)
        assert again.state is TimelineState.ACTIVE, f"after {steps} steps: {again.stopped_reason}"
        assert again.control.promised in (A, C)
        take_over(again, new, cut_lsn, number=20)
        assert read(again, new.lsn) == new.wal
        again.close("done")
        last = load_timeline(folder)
        assert last.positions.flush_lsn == new.lsn, f"after {steps} steps"
        assert last.control.term_history == history((A, START_LSN), (C, cut_lsn))
        shutil.rmtree(folder)
        if interrupted <= steps:
            break
    assert 15 <= interrupted < STEPS_MAX, "every step was met, and then the whole way gone"
