"""A survey of WAL that touches no page."""

from __future__ import annotations

from quorum_wal.pageserver.epochs.touch_survey import TouchSurveyor


def test_wal_without_touched_pages() -> None:
    touches = TouchSurveyor(15).finish()
    assert touches.pages == ()
    assert list(touches.forks()) == []
