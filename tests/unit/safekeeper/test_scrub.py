"""The scrub finds damage in WAL that no client reads, reports it, and continues behind it."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import cast

import pytest
from acceptor_steps import B1, A, elected, history
from timeline_on_disk import Pusher, fill, leading_pusher, load_timeline
from wal_log import START_LSN, WAL_SEG_SIZE

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.safekeeper.block_sums import BlockSums, encode_block_sums
from quorum_wal.safekeeper.scrub import Scrub, ScrubSettings, cold_end_lsn
from quorum_wal.safekeeper.status import damage_of
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timelines import Timelines

FAST = ScrubSettings(bytes_per_second=1e12)
TIMEOUT = 30.0


@pytest.fixture
def timeline(tmp_path: Path) -> Timeline:
    """Five segments and the beginning of a sixth, with records across every edge."""
    pusher = leading_pusher(tmp_path)
    fill(pusher.log, 5.5 * WAL_SEG_SIZE)
    pusher.push()
    pusher.push(commit_lsn=pusher.log.lsn)
    pusher.timeline.save_positions()
    return pusher.timeline


def flip(timeline: Timeline, lsn: int) -> None:
    (path,) = timeline.store.files_of(lsn // WAL_SEG_SIZE)
    content = bytearray(path.read_bytes())
    content[lsn % WAL_SEG_SIZE] ^= 0x10
    path.write_bytes(content)


def scrub_once(timeline: Timeline) -> Scrub:
    timelines = cast(Timelines, SimpleNamespace(all=lambda: [timeline]))
    scrub, stopping = Scrub(timelines, FAST), Event()
    thread = Thread(target=scrub.run, args=(stopping,))
    thread.start()
    wait_until(lambda: scrub.passes_count, TIMEOUT, "a pass")
    stopping.set()
    thread.join(TIMEOUT)
    return scrub


def test_a_whole_log_is_checked(timeline: Timeline) -> None:
    scrub = scrub_once(timeline)
    assert cold_end_lsn(timeline) == START_LSN + 5 * WAL_SEG_SIZE
    assert scrub.scrubbed_bytes == 5 * WAL_SEG_SIZE
    assert scrub.damages_count == 0
    described = scrub.describe()
    assert described["passes"] == 1
    assert described["pass_ended_at"] is not None
    assert described["position"] is None


def test_every_damage_is_found_in_one_pass(timeline: Timeline) -> None:
    """Also two in a row, the first, and one in padding or a page header, which no record covers."""
    damaged = (0, 2, 3)
    for number in damaged:
        flip(timeline, START_LSN + number * WAL_SEG_SIZE + 8192 + 22)
    scrub = scrub_once(timeline)
    assert scrub.damages_count == len(damaged)
    assert sorted(timeline.holes.all()) == [START_LSN // WAL_SEG_SIZE + n for n in damaged]
    for number, text in zip(damaged, damage_of(timeline), strict=True):
        assert f"at {format_lsn(START_LSN + number * WAL_SEG_SIZE)} is damaged" in text


def test_wal_that_was_damaged_when_it_came_is_found_by_its_records(
    timeline: Timeline, tmp_path: Path
) -> None:
    """Its checksums were computed from damaged bytes, but those of the records by the primary."""
    for path in (tmp_path / "checksums").iterdir():
        path.unlink()
    flip(timeline, START_LSN + WAL_SEG_SIZE + 300_000)
    segno = START_LSN // WAL_SEG_SIZE + 1
    sums = BlockSums(segno * WAL_SEG_SIZE)
    (path,) = timeline.store.files_of(segno)
    sums.extend(path.read_bytes())
    (tmp_path / "checksums" / path.name[8:]).write_bytes(encode_block_sums(sums))
    loaded = load_timeline(tmp_path)
    assert loaded.store.checked.read(sums.begin_lsn, 1 << 20, loaded.store.facts(START_LSN))
    scrub_once(loaded)
    assert list(loaded.holes.all()) == [segno]


def test_a_rate_of_0_disables_the_scrub(timeline: Timeline) -> None:
    timelines = cast(Timelines, SimpleNamespace(all=lambda: [timeline]))
    Scrub(timelines, ScrubSettings(bytes_per_second=0)).run(Event())


def test_it_keeps_to_its_rate(timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pauses correspond to the bytes that it reads."""
    waited: list[float] = []

    class Stopping(Event):
        def wait(self, timeout: float | None = None) -> bool:
            waited.append(timeout or 0.0)
            if len(waited) > 1 and scrub.passes_count:
                self.set()
            return self.is_set()

    timelines = cast(Timelines, SimpleNamespace(all=lambda: [timeline]))
    scrub = Scrub(timelines, ScrubSettings(bytes_per_second=1 << 20))
    scrub.run(Stopping())
    assert sum(waited[1:-1]) == pytest.approx(scrub.scrubbed_bytes / (1 << 20))


def test_a_promotion_during_the_scrub(tmp_path: Path) -> None:
    """The segment in which the timelines diverge is checked by the history of that moment."""
    pusher = leading_pusher(tmp_path)
    timeline, log = pusher.timeline, pusher.log
    fill(log, 2.5 * WAL_SEG_SIZE)
    pusher.push()
    pusher.push(commit_lsn=log.lsn)
    promoted = Pusher(timeline, 2, B1, log, terms=history((A, START_LSN), (B1, log.lsn)))

    def promote() -> None:
        tli_history = TimelineHistory.parse(2, f"1\t{format_lsn(log.lsn)}\tpromoted\n")
        timeline.connect(promoted)
        promoted.vote()
        promoted.send(elected(B1, log.lsn, promoted.terms, 2, tli_history=tli_history))
        log.tli = 2
        fill(log, 4.5 * WAL_SEG_SIZE)
        promoted.push()
        promoted.push(commit_lsn=log.lsn)

    class Stopping(Event):
        def wait(self, timeout: float | None = None) -> bool:
            if scrub.scrubbed_bytes and log.tli == 1:
                promote()
            if scrub.passes_count:
                self.set()
            return self.is_set()

    scrub = Scrub(cast(Timelines, SimpleNamespace(all=lambda: [timeline])), FAST)
    scrub.run(Stopping())
    assert scrub.scrubbed_bytes == 4 * WAL_SEG_SIZE
    assert scrub.damages_count == 0
