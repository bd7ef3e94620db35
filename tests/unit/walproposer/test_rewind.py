"""`sk rejoin`'s rules: when pg_rewind will not do, and what it leaves behind."""

from __future__ import annotations

import pytest

from pgwal.history import TimelineHistory
from pgwal.segment import format_segment_name
from walproposer.failover.rewind import (
    ControlData,
    base_backup_hint,
    failure_reason,
    lost_tails,
    rewind_problem,
    standby_settings,
)

CONTROL = """\
Database system identifier:           7710503112371519787
Latest checkpoint's TimeLineID:       1
Min recovery ending loc's timeline:   2
wal_log_hints setting:                off
Data page checksum version:           0
"""
SYSTEM = 7710503112371519787


def test_control_data_is_read() -> None:
    control = ControlData.parse(CONTROL)
    assert control.system_id == SYSTEM
    assert (control.checkpoint_tli, control.recovery_tli) == (1, 2)
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
