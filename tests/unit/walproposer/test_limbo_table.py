"""The known prepared transactions, with late, repeated and reordered information."""

from __future__ import annotations

from dataclasses import replace

import pytest
from limbo_steps import Coordinator, gid_of, row

from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.qsync import limbo_table
from quorum_wal.walproposer.qsync.limbo_events import Fenced
from quorum_wal.walproposer.qsync.limbo_table import Departure, Entry, Fate

GID = gid_of(begin_lsn=1100)


def entry(coordinator: Coordinator, gid: Gid = GID) -> Entry:
    return coordinator.limbo.table.entries[str(gid)]


def departure(coordinator: Coordinator, gid: Gid = GID) -> Departure:
    return coordinator.limbo.table.departures[str(gid)]


def is_known(coordinator: Coordinator, gid: Gid = GID) -> bool:
    return str(gid) in coordinator.limbo.table.entries


# ---- intervals


def test_a_reading_gives_an_interval() -> None:
    coordinator = Coordinator.deciding()
    coordinator.read(1500, row(GID))
    known = entry(coordinator)
    assert (known.low_lsn, known.high_lsn, known.is_exact) == (1100, 1500, False)
    coordinator.read(1600, row(GID))
    assert entry(coordinator).high_lsn == 1500


def test_the_stream_makes_it_exact_and_a_reading_does_not_undo_that() -> None:
    coordinator = Coordinator.deciding()
    coordinator.read(1500, row(GID))
    coordinator.prepared(GID, 1200)
    coordinator.read(1600, row(GID))
    known = entry(coordinator)
    assert (known.low_lsn, known.high_lsn, known.is_exact) == (1199, 1200, True)
    assert known.was_read
    assert known.owner == "owner"


def test_a_begin_above_the_end_is_no_bound() -> None:
    coordinator = Coordinator.deciding()
    liar = gid_of(begin_lsn=9000)
    coordinator.read(1500, row(liar))
    assert entry(coordinator, liar).low_lsn == 0


# ---- late and repeated words


def test_a_prepare_that_comes_again() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200)
    coordinator.prepared(GID, 1200)
    assert len(coordinator.limbo.table.entries) == 1
    coordinator.committed(GID, 1300)
    coordinator.prepared(GID, 1200)
    assert not is_known(coordinator)


def test_an_end_whose_prepare_was_never_seen() -> None:
    coordinator = Coordinator.deciding()
    coordinator.committed(GID, 1300)
    assert departure(coordinator).fate is Fate.COMMITTED
    other = gid_of(2)
    coordinator.rolled_back(other, 1200, 1300)
    assert departure(coordinator, other).fate is Fate.ROLLED_BACK


def test_a_prepare_sent_right_before_its_end() -> None:
    """As of one that was prepared before the slot could do two phases."""
    coordinator = Coordinator.deciding()
    coordinator.read(1500, row(GID))
    coordinator.prepared(GID, 1200)
    coordinator.committed(GID, 1600)
    assert not is_known(coordinator)


def test_a_reading_that_is_older_than_the_end() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200)
    coordinator.committed(GID, 1300)
    coordinator.read(1250, row(GID))
    assert not is_known(coordinator)


def test_what_a_reading_has_listed_and_does_not_any_more_has_left() -> None:
    coordinator = Coordinator.deciding()
    coordinator.read(1500, row(GID))
    coordinator.read(1600)
    assert departure(coordinator) == Departure(Fate.UNKNOWN, 701, 0, None)
    coordinator.prepared(GID, 1200)  # the stream is behind
    assert not is_known(coordinator)
    coordinator.committed(GID, 1550)
    assert departure(coordinator) == Departure(Fate.COMMITTED, 701, 0, 1550)


def test_an_entry_known_only_from_the_stream_may_not_be_listed_yet() -> None:
    """PREPARE has flushed it, and not yet completed."""
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200)
    coordinator.read(1500)
    coordinator.at(4999)
    coordinator.read(1500)
    assert is_known(coordinator)
    coordinator.at(5001)
    coordinator.read(1500)
    assert not is_known(coordinator)
    coordinator.read(1600, row(GID))  # it was only slow
    assert is_known(coordinator)


def test_a_reading_from_before_its_prepare_is_ignored() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200)
    for ms in (0, 10_000):
        coordinator.at(ms)
        coordinator.read(1500, before_lsn=1199)
    assert is_known(coordinator)


# ---- a gid that is used again, an xid that is used again


def test_the_rollback_of_an_earlier_use() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1400, at_us=9)
    coordinator.rolled_back(GID, 1200, 1300, at_us=1)
    assert entry(coordinator).high_lsn == 1400
    coordinator.rolled_back(GID, 1400, 1500, at_us=9)
    assert not is_known(coordinator)


def test_a_rollback_names_its_prepare_by_end_and_time() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1400, at_us=9)
    coordinator.rolled_back(GID, 1399, 1500, at_us=9)
    coordinator.rolled_back(GID, 1400, 1500, at_us=8)
    assert is_known(coordinator)


def test_the_commit_of_an_earlier_use() -> None:
    coordinator = Coordinator.deciding()
    later = replace(GID, xid=900)
    text = str(GID)
    assert text != str(later)  # ours name their xid: only another's could do so, and it is no gid
    coordinator.prepared(GID, 1400)
    coordinator.committed(GID, 1399)  # it ends before this PREPARE does
    assert entry(coordinator).high_lsn == 1400


def test_a_gid_that_is_used_again_counts_from_its_new_end() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200, at_us=1)
    coordinator.prepared(GID, 1400, at_us=9)
    assert entry(coordinator).high_lsn == 1400
    coordinator.prepared(GID, 1200, at_us=1)  # the stream repeats itself
    assert entry(coordinator).high_lsn == 1400


def test_an_ambiguous_use_keeps_the_wider_interval() -> None:
    coordinator = Coordinator.deciding()
    coordinator.read(1500, row(GID, at_us=9))
    coordinator.prepared(GID, 1200, at_us=1)
    assert entry(coordinator).high_lsn == 1500
    coordinator.prepared(GID, 1400, at_us=9)
    assert entry(coordinator).high_lsn == 1400


def test_a_reading_of_another_use_widens_the_interval_of_the_stream() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200, at_us=1)
    coordinator.read(1199, row(GID, at_us=9))
    assert entry(coordinator).is_exact
    coordinator.read(1500, row(GID, at_us=9))
    assert entry(coordinator).high_lsn == 1500


def test_a_prepare_after_an_end_is_another_use() -> None:
    coordinator = Coordinator.deciding()
    coordinator.prepared(GID, 1200, at_us=1)
    coordinator.rolled_back(GID, 1200, 1300, at_us=1)
    coordinator.prepared(GID, 1400, at_us=9)
    assert entry(coordinator).high_lsn == 1400


# ---- who leads


def test_another_leader_knows_of_ends_only_what_the_quorum_has() -> None:
    coordinator = Coordinator.deciding()
    kept, lost = gid_of(1), gid_of(2)
    coordinator.committed(kept, 1300)
    coordinator.committed(lost, 1400)
    coordinator.prepared(gid_of(3), 1450)
    coordinator.commit(1300)
    coordinator.step(Fenced("over"))
    assert list(coordinator.limbo.table.departures) == [str(kept)]
    assert coordinator.limbo.table.entries == {}


def test_what_a_quorum_has_is_in_the_log_of_every_later_term() -> None:
    coordinator = Coordinator.deciding()
    others = gid_of(2, begin_lsn=1100)
    coordinator.prepared(GID, 1200)
    coordinator.prepared(others, 1300)
    coordinator.commit(1200)
    coordinator.step(Fenced("for the test"))
    table = coordinator.limbo.table
    assert table.entries == {}
    assert table.is_in_log(str(GID))
    assert not table.is_in_log(str(others))


def test_not_all_ends_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limbo_table, "DEPARTURES_MAX", 3)
    coordinator = Coordinator.deciding()
    gids = [gid_of(number) for number in range(5)]
    for number, gid in enumerate(gids):
        coordinator.committed(gid, 1300 + number)
    assert list(coordinator.limbo.table.departures) == [str(gid) for gid in gids[2:]]
