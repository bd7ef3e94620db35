"""Which timeline a replica may stream, from where, and which one follows."""

from __future__ import annotations

import pytest

from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.safekeeper.errors import SafekeeperError
from quorum_wal.safekeeper.replica import check_timeline, committed_tli, first_lsn_of, next_tli
from quorum_wal.safekeeper.server_settings import (
    find_setting,
    shown_settings,
    size_text,
    version_text,
)

# 1 -> 2 at 0x2500, 2 -> 5 at 0x2500 as well (it wrote nothing), 5 -> 7 at 0x6000
HISTORY = TimelineHistory.parse(7, "1\t0/2500\ta\n\n2\t0/2500\tb\n\n5\t0/6000\tc\n")


@pytest.mark.parametrize(
    ("committed", "tli"),
    [(0, 1), (0x2500, 1), (0x2501, 5), (0x6000, 5), (0x6001, 7), (0x9000, 7)],
)
def test_a_switch_counts_when_something_beyond_it_is_committed(committed: int, tli: int) -> None:
    """Until then another primary may continue the older timeline."""
    assert committed_tli(HISTORY, committed) == tli


def test_the_next_timeline() -> None:
    assert [next_tli(HISTORY, tli) for tli in (1, 2, 5)] == [2, 5, 7]


@pytest.mark.parametrize(
    ("tli", "start_lsn", "committed"),
    [
        (7, 0x6000, 0x9000),
        (7, 0x5000, 0x9000),  # the segment of the switch, from its first byte
        (1, 0x2500, 0x9000),  # nothing to stream, but no error
        (1, 0x1000, 0x9000),
        (1, 0x1000, 0x2000),  # the switch is not reached
        (1, 0x2000, 0x2500),
        (5, 0x6000, 0x6000),
    ],
)
def test_what_may_be_streamed(tli: int, start_lsn: int, committed: int) -> None:
    check_timeline(HISTORY, tli, start_lsn, committed)


@pytest.mark.parametrize(
    ("tli", "start_lsn", "committed", "words"),
    [
        (3, 0x1000, 0x9000, "requested timeline 3 is not in this server's history"),
        (8, 0x1000, 0x9000, "requested timeline 8 is not in this server's history"),
        (2, 0x1000, 0x2500, "requested timeline 2 is not in this server's history"),
        (7, 0x6000, 0x6000, "requested timeline 7 is not in this server's history"),
        (1, 0x2501, 0x9000, "0/2501 on timeline 1 is not in this server's history"),
        (5, 0x6001, 0x9000, "0/6001 on timeline 5 is not in this server's history"),
    ],
)
def test_what_may_not(tli: int, start_lsn: int, committed: int, words: str) -> None:
    with pytest.raises(SafekeeperError, match=words):
        check_timeline(HISTORY, tli, start_lsn, committed)


def test_where_a_timelines_files_begin() -> None:
    assert [first_lsn_of(HISTORY, tli, 0x1000) for tli in (1, 2, 5, 7)] == [
        0,
        0x2000,
        0x2000,
        0x6000,
    ]


def test_settings_as_postgres_shows_them() -> None:
    assert [version_text(n) for n in (130000, 150018, 180004)] == ["13.0", "15.18", "18.4"]
    assert [size_text(n) for n in (1 << 20, 16 << 20, 1 << 30, 8192)] == [
        "1MB",
        "16MB",
        "1GB",
        "8kB",
    ]
    settings = shown_settings(ServerFacts(1, 160014, 64 << 20), "me")
    assert settings["wal_segment_size"] == "64MB"
    assert settings["server_version_num"] == "160014"
    assert settings["data_directory_mode"] == "0700"
    assert find_setting(settings, "datestyle") == ("DateStyle", "ISO, MDY")
    assert find_setting(settings, "port") is None
