"""What a survey says of WAL that does nothing."""

from __future__ import annotations

from pageserver.epochs.touch_survey import TouchSurveyor


def test_wal_that_touches_no_page_has_no_pages() -> None:
    touches = TouchSurveyor(15).finish()
    assert touches.pages == ()
    assert list(touches.forks()) == []
