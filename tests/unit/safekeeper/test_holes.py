"""Damage of committed WAL: detected before a byte of it leaves, taken out, reported; no vote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from acceptor_steps import C
from timeline_on_disk import (
    Pusher,
    filled_timeline,
    flip,
    leading_pusher,
    load_timeline,
    log_of,
    segment_file,
)
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.safekeeper.block_sums import (
    BLOCK_BYTES,
    BlockSums,
    decode_block_sums,
    encode_block_sums,
)
from quorum_wal.safekeeper.errors import WalDamaged
from quorum_wal.safekeeper.read_wal import read_wal
from quorum_wal.safekeeper.status import damage_of
from quorum_wal.safekeeper.timeline import Timeline
from quorum_wal.safekeeper.timeline_state import TimelineState

SECOND_LSN = START_LSN + WAL_SEG_SIZE


def running(folder: Path, log: WalLog) -> Timeline:
    """It has written the log itself; its positions and checksums are saved."""
    pusher = leading_pusher(folder)
    pusher.log = log
    pusher.push()
    pusher.push(commit_lsn=log.lsn)
    pusher.timeline.save_positions()
    return pusher.timeline


def restarted(folder: Path, log: WalLog) -> Timeline:
    running(folder, log)
    return load_timeline(folder)


def without_checksums(folder: Path, log: WalLog) -> Timeline:
    """Written by an older release."""
    running(folder, log)
    for path in (folder / "checksums").iterdir():
        path.unlink()
    return load_timeline(folder)


Start = Callable[[Path, WalLog], Timeline]
STARTS: list[Start] = [running, restarted, without_checksums]


def read_all(timeline: Timeline) -> bytes:
    """Everything committed, in pieces of every size."""
    wal, lsn, sizes = b"", START_LSN, [1, 700, BLOCK_BYTES, BLOCK_BYTES + 1, 1 << 20]
    while lsn < timeline.positions.commit_lsn:
        length = min(sizes[len(wal) % len(sizes)], timeline.positions.commit_lsn - lsn)
        part = read_wal(timeline, lsn, length)
        assert part
        wal, lsn = wal + part, lsn + len(part)
    return wal


@pytest.mark.parametrize("start", STARTS)
def test_valid_wal_is_read_as_it_was_written(tmp_path: Path, start: Start) -> None:
    log = log_of(2_500_000)
    timeline = start(tmp_path, log)
    assert read_all(timeline) == bytes(log.wal)
    assert damage_of(timeline) == []


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("offset", [0, 4, WAL_PAGE_SIZE + 4, 500_000, WAL_SEG_SIZE - 1])
def test_no_damaged_byte_of_an_old_segment_is_returned(
    tmp_path: Path, start: Start, offset: int
) -> None:
    log = log_of(3_500_000, record_bytes=5_000)
    timeline = start(tmp_path, log)
    flip(tmp_path, SECOND_LSN + offset)
    with pytest.raises(WalDamaged) as damage:
        read_wal(timeline, SECOND_LSN + offset, 1)
    assert abs(damage.value.lsn - SECOND_LSN - offset) <= 2 * BLOCK_BYTES
    assert not segment_file(tmp_path, SECOND_LSN).exists()
    assert (tmp_path / "damaged" / segment_file(tmp_path, SECOND_LSN).name).exists()
    check_votes_not(timeline)
    check_votes_not(load_timeline(tmp_path))


def check_votes_not(timeline: Timeline) -> None:
    """It reports the reason, serves the valid WAL, and takes part except for the vote."""
    (damage, *_) = damage_of(timeline)
    assert "segment 0000000100000000000000" in damage
    assert timeline.state is TimelineState.ACTIVE
    with pytest.raises(WalDamaged):
        read_wal(timeline, SECOND_LSN + 100, 100)
    assert read_wal(timeline, START_LSN + 3 * WAL_SEG_SIZE, 100)
    voter = Pusher(timeline, number=9, node_id=C)
    timeline.connect(voter)
    vote = voter.vote()
    assert not vote.granted
    assert vote.flush_lsn == timeline.positions.flush_lsn, "the log goes on above it"
    timeline.disconnect(voter)


@pytest.mark.parametrize("start", [running, restarted])
def test_damage_in_the_last_segment_is_a_lost_end(tmp_path: Path, start: Start) -> None:
    """That segment is being written: no other file can replace it."""
    log = log_of(2_500_000)
    timeline = start(tmp_path, log)
    flip(tmp_path, log.ends[-3] - 100)
    with pytest.raises(WalDamaged):
        read_wal(timeline, log.starts[-3], log.lsn - log.starts[-3])
    assert timeline.control.lost_lsn == log.lsn
    assert timeline.positions.flush_lsn <= log.ends[-4]
    assert read_wal(timeline, START_LSN, 1 << 20)


@pytest.mark.parametrize("how", ["missing", "short"])
def test_a_missing_or_short_segment_is_a_hole(tmp_path: Path, how: str) -> None:
    log = log_of(3_500_000)
    filled_timeline(tmp_path, log, commit_lsn=log.lsn)
    path = segment_file(tmp_path, SECOND_LSN)
    path.unlink() if how == "missing" else os.truncate(path, WAL_SEG_SIZE - 1)
    check_votes_not(load_timeline(tmp_path))


def test_a_log_that_was_cut_is_checked_up_to_its_new_end(tmp_path: Path) -> None:
    """The bytes before the cut do not count any more, also after a restart."""
    log = log_of(2_500_000)
    timeline = running(tmp_path, log)
    cut_lsn = log.ends[20]
    timeline.store.truncate(cut_lsn)
    other = log.cut(cut_lsn)
    while other.lsn < START_LSN + 2_600_000:
        other.append(f"S{len(other.ends)}", 20_000)
    timeline.store.write(cut_lsn, other.read(cut_lsn, other.lsn))
    facts = timeline.store.facts(START_LSN)
    for lsn in range(START_LSN, other.lsn, BLOCK_BYTES):
        length = min(BLOCK_BYTES, other.lsn - lsn)
        assert timeline.store.checked.read(lsn, length, facts) == other.read(lsn, lsn + length)


def test_checksums_that_are_damaged_are_computed_again(tmp_path: Path) -> None:
    log = log_of(2_500_000)
    running(tmp_path, log)
    for path in (tmp_path / "checksums").iterdir():
        path.write_bytes(path.read_bytes()[:-5] + b"wrong")
    timeline = load_timeline(tmp_path)
    assert read_all(timeline) == bytes(log.wal)
    assert damage_of(timeline) == []


def test_every_damage_of_a_checksum_file_is_detected() -> None:
    sums = BlockSums(START_LSN)
    sums.extend(bytes(range(256)) * (WAL_SEG_SIZE // 256))
    content = encode_block_sums(sums)
    decoded = decode_block_sums(content, START_LSN, WAL_SEG_SIZE)
    assert decoded is not None
    assert (decoded.crcs, decoded.end) == (sums.crcs, sums.end)
    for at in range(len(content)):
        flipped = content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]
        assert decode_block_sums(flipped, START_LSN, WAL_SEG_SIZE) is None
        assert decode_block_sums(content[:at], START_LSN, WAL_SEG_SIZE) is None
