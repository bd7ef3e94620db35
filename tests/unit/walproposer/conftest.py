"""A leader to test, and limits small enough that a run of kilobytes meets them."""

from __future__ import annotations

import pytest
from change_steps import Change
from leader_world import World
from proposer_steps import leading
from wal_log import WalLog

from quorum_wal.walproposer.stream import progress, wal_window


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that trim, peers that fall below them, senders that must wait."""
    monkeypatch.setattr(wal_window, "KEEP_BYTES", 16 * 1024)
    monkeypatch.setattr(wal_window, "KEEP_CHUNKS", 8)
    monkeypatch.setattr(wal_window, "WINDOW_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(progress, "IN_FLIGHT_BYTES_MAX", 16 * 1024)


@pytest.fixture
def world() -> World:
    """Three members with an empty log; all are streaming and have answered."""
    log = WalLog()
    world = World(leading(log, peers=(0, 1, 2)), log)
    world.answer(0, 1, 2)
    return world


@pytest.fixture
def change() -> Change:
    """Three members that stream an empty log and have answered."""
    return Change()
