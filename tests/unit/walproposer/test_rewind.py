"""The rules of `sk rejoin`: when pg_rewind cannot be used, and what it leaves."""

from __future__ import annotations

import struct

import pytest

from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.walproposer.failover.rewind import (
    ControlData,
    base_backup_hint,
    failure_reason,
    lost_tails,
    missing_wal_problem,
    recovery_start_lsn,
    rewind_problem,
    standby_settings,
    streamed_from_lsn,
)

CONTROL = """\
Database system identifier:           7710503112371519787
Latest checkpoint's TimeLineID:       1
Latest checkpoint's REDO location:    0/272FDC00
Min recovery ending loc's timeline:   2
wal_log_hints setting:                off
Data page checksum version:           0
"""
SYSTEM = 7710503112371519787
REDO_LSN = 0x272FDC00
LABEL = """\
START WAL LOCATION: 0/272FDC00 (file 0000000C0000000000000272)
CHECKPOINT LOCATION: 0/2927E5C8
BACKUP METHOD: pg_rewind
"""


def test_control_data_is_read() -> None:
    control = ControlData.parse(CONTROL)
    assert control.system_id == SYSTEM
    assert (control.checkpoint_tli, control.recovery_tli) == (1, 2)
    assert control.redo_lsn == REDO_LSN
    assert not control.has_checksums
    assert not control.has_wal_log_hints
    with pytest.raises(ValueError, match="does not show 'wal_log_hints setting'"):
        ControlData.parse(CONTROL.replace("wal_log_hints", "hints"))


def test_either_checksums_or_hints_will_do() -> None:
    hint = base_backup_hint("/data", "host=a")
    problem = rewind_problem(ControlData.parse(CONTROL), SYSTEM, hint)
    assert problem is not None
    assert "neither data checksums nor wal_log_hints" in problem.text
    assert "pg_basebackup --pgdata=/data" in problem.hint
    for line, value in (("Data page checksum version", "1"), ("wal_log_hints setting", "on")):
        control = ControlData.parse(f"{CONTROL}{line}: {value}\n")
        assert rewind_problem(control, SYSTEM, hint) is None
        other = rewind_problem(control, 5, hint)
        assert other is not None
        assert "system 5" in other.text


def test_a_standby_follows_only_the_safekeepers() -> None:
    before = (
        "# edited\nwork_mem = '8MB'\nprimary_conninfo = 'host=new'\nprimary_slot_name = 'old'\n"
    )
    after = standby_settings(before, r"host=a,b passfile='C:\x'")
    assert after == (
        "# edited\nwork_mem = '8MB'\n"
        r"primary_conninfo = 'host=a,b passfile=''C:\\x'''" + "\nprimary_slot_name = ''\n"
    )
    assert standby_settings(after, r"host=a,b passfile='C:\x'") == after


def test_the_reason_of_a_failure_is_one_line() -> None:
    output = "pg_rewind: servers diverged\npg_rewind: error: could not open file\nhint: none\n\n"
    assert failure_reason(output) == "error: could not open file"
    assert failure_reason("nothing known\n") == "nothing known"
    assert failure_reason("") == "it gave no reason"


def test_what_a_lost_server_wrote_after_the_fork_is_its_tail() -> None:
    mib = 1 << 20
    history = TimelineHistory.parse(3, f"1\t0/{3 * mib:X}\tx\n2\t0/{9 * mib + 0x918:X}\tx\n")
    names = [
        *(format_segment_name(1, segno, mib) for segno in (2, 3)),
        *(format_segment_name(2, segno, mib) for segno in (8, 9, 10)),
        *(format_segment_name(3, segno, mib) for segno in (9, 10)),
        format_segment_name(4, 9, mib),
        format_segment_name(2, 9, mib, partial=True),
        "00000003.history",
        "archive_status",
    ]
    assert lost_tails(names, history, mib) == {
        format_segment_name(1, 3, mib): 0,
        format_segment_name(2, 9, mib): 0x918,
        format_segment_name(2, 10, mib): 0,
        format_segment_name(4, 9, mib): 0,
    }


# ---- the WAL that its recovery needs


def test_a_backup_label_has_the_start_of_recovery() -> None:
    assert recovery_start_lsn(LABEL) == REDO_LSN
    assert recovery_start_lsn("START TIME: now\n") is None


def test_recovery_asks_from_the_last_segment_before_the_first_gap_in_pg_wal() -> None:
    """Timeline 12 ended in the middle of the second segment."""
    size = 1 << 20
    first = REDO_LSN // size
    left_lsn = format_lsn((first + 1) * size + size // 2)
    history = TimelineHistory.parse(13, f"12\t{left_lsn}\tpromoted\n")
    pages = {"0000000D.history": b"1"}

    def asks_with(*segments: tuple[int, int], recycled: int = 0) -> int:
        for tli, number in segments:
            page = struct.pack("<HHIQI", 0xD110, 0, tli, (first + number - recycled) * size, 0)
            pages[format_segment_name(tli, first + number, size)] = page.ljust(8192, b"\0")
        return streamed_from_lsn(pages, REDO_LSN, history, size)

    assert asks_with() == REDO_LSN
    assert asks_with((13, 0), (12, 1)) == REDO_LSN, "not of this history, not whole"
    assert asks_with((12, 0)) == REDO_LSN, "it may not be full"
    assert asks_with((13, 1), (13, 3)) == (first + 1) * size
    pages[format_segment_name(13, first + 2, size) + ".partial"] = b""
    assert asks_with() == (first + 1) * size
    assert asks_with((13, 2), recycled=9) == (first + 1) * size, "written by another name"
    assert asks_with((13, 2)) == (first + 3) * size


def test_wal_that_no_safekeeper_has_any_more_is_missed() -> None:
    assert missing_wal_problem(REDO_LSN, [REDO_LSN + 1, REDO_LSN], "hint") is None
    problem = missing_wal_problem(REDO_LSN, [0x2C000000, 0x2D000000], "Take a backup.")
    assert problem is not None
    assert "needs WAL from 0/272FDC00 on" in problem.text
    assert "begins at 0/2C000000" in problem.text
    assert problem.hint.startswith("Take a backup.")
