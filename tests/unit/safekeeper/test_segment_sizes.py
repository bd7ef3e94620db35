"""Segments of every size: no step holds the interpreter for long, or needs memory in proportion.

A process on the path of a commit has other threads that must answer: within HELD_SECONDS_MAX.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from wal_log import PG_VERSION, SYSTEM_ID, WalLog

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory, TimelineSwitch
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.safekeeper.wal_store import WalStore
from tests.interpreter_probe import assert_bounds

MIB = 1 << 20
SEGMENT_SIZES = (1 * MIB, 16 * MIB, 1024 * MIB)
PIECE_BYTES = 128 * 1024


@pytest.fixture(params=SEGMENT_SIZES, ids=lambda size: f"{size // MIB} MiB")
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """fsync is disabled: the test is not about durability, and it would sync hundreds of MB."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    monkeypatch.setattr(os, "fdatasync", lambda fd: None)
    return World(tmp_path / "wal", request.param)


@cache
def log_of(wal_seg_size: int) -> WalLog:
    log = WalLog(wal_seg_size, wal_seg_size=wal_seg_size)
    for number in range(20):
        log.append(f"R{number}", 5000)
    log.append("large", wal_seg_size // 6)
    return log


class World:
    """A log of some records and of the first part of a large one, which crosses a segment."""

    def __init__(self, folder: Path, wal_seg_size: int) -> None:
        self.folder = folder
        self.server = ServerFacts(SYSTEM_ID, PG_VERSION, wal_seg_size)
        self.start_lsn = wal_seg_size
        self.log = log_of(wal_seg_size)
        self.flush_lsn = self.log.ends[-2]
        self.part_lsn = self.flush_lsn + wal_seg_size // 8
        self.store = self._store()

    def _store(self) -> WalStore:
        return WalStore(self.folder, self.server, TimelineHistory(1))

    def make(self) -> None:
        """A new folder, with the log up to the middle of the large record."""
        self.store.abandon()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.store = self._store()
        self.store.recover(self.start_lsn, self.start_lsn)
        self.write(self.part_lsn)

    def write(self, end_lsn: int) -> None:
        wal, store = memoryview(self.log.wal), self.store
        while store.end_lsn < end_lsn:
            begin = store.end_lsn - self.start_lsn
            store.write(
                store.end_lsn, wal[begin : min(begin + PIECE_BYTES, end_lsn - self.start_lsn)]
            )

    def make_stale(self) -> None:
        """The state after a crash: the torn record, and old bytes at the end."""
        self.make()
        self.store.close()
        path = next(self.folder.glob("0*"))
        with path.open("r+b") as file:
            file.seek(-MIB // 2, os.SEEK_END)
            file.write(b"stale" * 1000)
        self.store = self._store()

    def make_whole(self) -> None:
        self.make()
        self.write(self.log.lsn)

    def make_spare(self) -> None:
        (self.folder / "next-segment").unlink(missing_ok=True)

    # ---- the measured operations

    def recover(self) -> None:
        self.store = self._store()
        assert self.store.recover(self.start_lsn, self.start_lsn).end_lsn == self.flush_lsn

    def truncate(self) -> None:
        self.store.truncate(self.flush_lsn)

    def switch_timeline(self) -> None:
        """The next record is on another timeline, whose file begins with the old one's bytes."""
        end_lsn = self.store.end_lsn
        self.store.adopt(TimelineHistory(2, (TimelineSwitch(1, Lsn(end_lsn), "promoted"),)))
        self.store.write(end_lsn, b"a page of the new one")
        files = sorted(self.folder.glob("0*"))
        assert [path.name[:8] for path in files] == ["00000001", "00000002"]

    def go_on(self) -> None:
        """Creates a segment, and the next one."""
        self.store.prepare_next_segment()


SHAPES: dict[str, tuple[Callable[[World], None], Callable[[World], None]]] = {
    "recovery behind a torn record": (World.make_stale, World.recover),
    "truncation of a torn record": (World.make, World.truncate),
    "timeline switch": (World.make_whole, World.switch_timeline),
    "the next segment": (World.make_spare, World.go_on),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_holds_the_interpreter_or_takes_memory(world: World, shape: str) -> None:
    make, act = SHAPES[shape]
    world.make()
    assert_bounds(lambda: act(world), lambda: make(world))


def test_a_recovery_leaves_zeros_behind_the_end(world: World) -> None:
    world.make_stale()
    world.recover()
    tail_bytes = world.store.wal_seg_size - world.flush_lsn % world.store.wal_seg_size
    with next(world.folder.glob("0*")).open("rb") as file:
        file.seek(-tail_bytes, os.SEEK_END)
        while tail := file.read(MIB):
            assert tail == bytes(len(tail))
