"""Limits of the proposer, small enough that a run of kilobytes meets them."""

from __future__ import annotations

import pytest

from walproposer import progress, wal_window


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that trim, peers that fall below them, senders that must wait."""
    monkeypatch.setattr(wal_window, "KEEP_BYTES", 16 * 1024)
    monkeypatch.setattr(wal_window, "KEEP_CHUNKS", 8)
    monkeypatch.setattr(wal_window, "WINDOW_BYTES_MAX", 64 * 1024)
    monkeypatch.setattr(progress, "IN_FLIGHT_BYTES_MAX", 16 * 1024)
