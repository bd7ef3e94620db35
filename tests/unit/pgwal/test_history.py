"""Timeline histories: the text of the files, and the timeline of every position."""

from __future__ import annotations

import pytest

from quorum_wal.pgwal.errors import TimelineHistoryError
from quorum_wal.pgwal.history import (
    TimelineHistory,
    TimelineSwitch,
    history_file_name,
    parse_history_file_name,
)
from quorum_wal.pgwal.lsn import Lsn

#: As Postgres wrote it at the second promotion: the copy of the parent's file, a newline, a line.
TEXT = '1\t0/3000110\tno recovery target specified\n\n2\t0/50001A8\tat restore point "x y"\n'
HISTORY = TimelineHistory(
    3,
    (
        TimelineSwitch(1, Lsn(0x3000110), "no recovery target specified"),
        TimelineSwitch(2, Lsn(0x50001A8), 'at restore point "x y"'),
    ),
)


def test_there_and_back() -> None:
    assert TimelineHistory.parse(3, TEXT) == HISTORY
    assert HISTORY.format() == TEXT


def test_timeline_without_ancestors() -> None:
    assert TimelineHistory.parse(1, "") == TimelineHistory(1)
    assert TimelineHistory(1).format() == ""
    assert TimelineHistory(1).tli_at(0xFFFFFFFF) == 1


def test_comments_blank_lines_and_missing_reasons_are_fine() -> None:
    text = "# a comment\n\n   \n 1\t0/3000110\n  # another\n2 \t 0/50001a8\tx"
    history = TimelineHistory.parse(3, text)
    assert [(e.tli, e.switch_lsn, e.reason) for e in history.entries] == [
        (1, 0x3000110, ""),
        (2, 0x50001A8, "x"),
    ]


@pytest.mark.parametrize(
    ("lsn", "tli"),
    [(0, 1), (0x300010F, 1), (0x3000110, 2), (0x50001A7, 2), (0x50001A8, 3), (1 << 60, 3)],
)
def test_a_switch_position_belongs_to_the_new_timeline(lsn: int, tli: int) -> None:
    assert HISTORY.tli_at(lsn) == tli


def test_switch_lsn_of() -> None:
    assert HISTORY.switch_lsn_of(1) == 0x3000110
    assert HISTORY.switch_lsn_of(2) == 0x50001A8
    assert HISTORY.switch_lsn_of(3) is None
    with pytest.raises(TimelineHistoryError, match="requested timeline 4 is not in the history"):
        HISTORY.switch_lsn_of(4)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("x\t0/1\n", "syntax error in history file: x", "numeric timeline ID"),
        ("-1\t0/1\n", "syntax error", "numeric timeline ID"),
        ("1\n", "syntax error in history file: 1", "switchpoint location"),
        ("1\tx\n", "syntax error", "switchpoint location"),
        ("1\t10\n", "syntax error", "switchpoint location"),
        ("10/3\n", "syntax error", "switchpoint location"),
        ("2\t0/1\n1\t0/2\n", "invalid data in history file: 1\t0/2", "increasing sequence"),
        ("1\t0/1\n1\t0/2\n", "invalid data", "increasing sequence"),
        ("1\t0/2\n2\t0/1\n", "invalid data in history file: 2\t0/1", "must not go back"),
        ("3\t0/1\n", "invalid data in history file: 3\t0/1", "less than child timeline's ID"),
        ("4\t0/1\n", "invalid data", "less than child timeline's ID"),
    ],
)
def test_damage(text: str, message: str, hint: str) -> None:
    with pytest.raises(TimelineHistoryError, match="history file") as caught:
        TimelineHistory.parse(3, text)
    assert str(caught.value).startswith(message)
    assert hint in caught.value.hint


def test_file_names() -> None:
    assert history_file_name(0xAB) == "000000AB.history"
    assert parse_history_file_name("000000AB.history") == 0xAB
    for name in ("AB.history", "000000ab.history", "000000AB.history.tmp", "000000AB"):
        with pytest.raises(TimelineHistoryError, match="invalid timeline history file name"):
            parse_history_file_name(name)
