"""The web page of a pageserver, from its status alone."""

from __future__ import annotations

from typing import Any

from quorum_wal.pageserver.web_page import PageserverPage
from quorum_wal.telemetry.page.rendering import render_body
from quorum_wal.telemetry.page.tone import Tone


def timeline(**changes: Any) -> dict[str, Any]:
    """As in pageserver/service.py, while it ingests."""
    return {
        "phase": "active", "mode": "single", "ingest": "receiving", "problem": "", "cuts": 3,
        "layers": 4, "layer_bytes": 5 << 20, "received_lsn": "0/2000000", "cut_lsn": "0/1000000",
        "lag_bytes": 1 << 24, "replayed_wal_bytes": 9, **changes,
    }  # fmt: skip


def status(*timelines: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "0.1.0", "node_id": 7, "node_generation": 2, "http": "127.0.0.1:7680",
        "archive": "s3://bucket", "generation_service": "ok", "validated_seconds_ago": None,
        "emergency": "", "deleted_objects": 0, "deleted_timelines": [], "unusable_files": {},
        "timelines": {f"{'0' * 32}/{n:032x}": t for n, t in enumerate(timelines)}, **changes,
    }  # fmt: skip


def test_a_healthy_cluster_is_ok() -> None:
    page = PageserverPage(lambda: status(timeline(), timeline()), lambda: "")
    page.sample()
    page.sample()
    view = page.view("")
    assert (view.headline.condition, view.headline.tone) == ("OK", Tone.OK)
    assert [chart.title for chart in view.charts] == ["WAL behind the newest cut", "WAL replayed"]
    body = render_body(view)
    assert "2 timelines: pages are made" in body
    assert "16.0 MiB behind" in body


def test_a_problem_is_the_headline_and_marks_its_timeline() -> None:
    broken = timeline(problem="WAL is lost", phase="broken")
    view = PageserverPage(
        lambda: status(broken, generation_service="refused"), lambda: "timeline x: WAL is lost"
    ).view("")
    assert (view.headline.condition, view.headline.text) == ("PROBLEM", "timeline x: WAL is lost")
    assert view.tables[0].rows[0][1].tone is Tone.BAD
    assert view.picture is not None
    assert view.picture.columns[2][1].tone is Tone.WARN


def test_one_without_timelines_and_one_in_an_emergency() -> None:
    idle = PageserverPage(status, lambda: "").view("")
    assert idle.headline.text == "no timeline is attached to it"
    emergency = PageserverPage(lambda: status(emergency="the service is lost"), lambda: "").view("")
    assert (emergency.headline.condition, emergency.headline.tone) == ("EMERGENCY", Tone.WARN)


def test_before_the_first_cut_the_page_says_what_it_waits_for() -> None:
    first = timeline(cuts=0, first_cut="the first cut waits for a checkpoint")
    headline = PageserverPage(lambda: status(timeline(), first), lambda: "").view("").headline
    assert (headline.condition, headline.tone) == ("OK", Tone.IDLE)
    assert headline.text == "no table can be restored yet: the first cut waits for a checkpoint"


def test_a_timeline_that_is_not_ingested_yet_has_no_lag() -> None:
    claiming = timeline(phase="claiming")
    for key in ("ingest", "received_lsn", "cut_lsn", "lag_bytes", "replayed_wal_bytes"):
        del claiming[key]
    page = PageserverPage(lambda: status(claiming), lambda: "")
    page.sample()
    assert "receives no WAL" in render_body(page.view(""))
