"""The last events are few, and a flood of one kind leaves those of the other."""

from __future__ import annotations

import re
from pathlib import Path

import structlog

from quorum_wal.telemetry.recent_events import NOISE, TEXT_CHARACTERS_MAX, RecentEvents

ROOT = Path(__file__).parents[3]


def logged(events: RecentEvents, level: str, text: str, **fields: object) -> None:
    given = {"event": text, "level": level, **fields}
    assert events.keep(None, level, given) is given
    assert given == {"event": text, "level": level, **fields}


def test_routine_does_not_push_out_what_is_urgent() -> None:
    events = RecentEvents(events_max=3)
    logged(events, "error", "QUORUM LOST", unconfirmed_bytes=7)
    for number in range(50):
        logged(events, "info", "safekeeper connected", number=number)
    kept = events.newest(100)
    assert [event.text for event in kept] == ["safekeeper connected"] * 3 + ["QUORUM LOST"]
    assert kept[-1].details == "unconfirmed_bytes 7"
    assert kept[-1].is_urgent
    assert [event.details for event in events.newest(2)] == ["number 49", "number 48"]


def test_what_repeats_itself_is_counted() -> None:
    events = RecentEvents()
    for _ in range(4):
        logged(events, "warning", "archiving failed", reason="no route")
    logged(events, "warning", "archiving failed", reason="denied")
    denied, unreachable = events.newest(9)
    assert (denied.count, unreachable.count) == (1, 4)


def test_debug_lines_and_what_strangers_cause_are_not_kept() -> None:
    events = RecentEvents()
    logged(events, "debug", "client lost")
    logged(events, "warning", "connection refused", client="10.0.0.66:1")
    assert events.newest(9) == []


def test_a_long_text_is_cut_to_one_line() -> None:
    events = RecentEvents()
    logged(events, "error", "a\nb", reason="x" * 10_000)
    (event,) = events.newest(9)
    assert event.text == "a b"
    assert len(event.details) == TEXT_CHARACTERS_MAX


def test_it_is_a_processor_of_the_log() -> None:
    events = RecentEvents()
    lines: list[str] = []
    log = structlog.wrap_logger(
        structlog.PrintLogger(),
        processors=[
            structlog.processors.add_log_level,
            events.keep,
            lambda _, __, event: lines.append(str(event)) or str(event),
        ],
    )
    log.error("QUORUM LOST, commits wait", unconfirmed_bytes=0)
    assert [event.level for event in events.newest(1)] == ["error"]
    assert "QUORUM LOST" in lines[0]


def test_what_is_left_out_is_logged_somewhere() -> None:
    """A log line that gets another text must get it here, too."""
    folders = ("walproposer", "safekeeper", "pageserver", "access", "backup", "telemetry")
    files = [f for name in folders for f in (ROOT / name).rglob("*.py")]
    source = "".join(f.read_text() for f in files if f.name != "recent_events.py")
    missing = [text for text in NOISE if not re.search(rf"\(\s*\"{re.escape(text)}\"", source)]
    assert missing == []
