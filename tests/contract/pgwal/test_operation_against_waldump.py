"""Every operation of every resource manager has the name that pg_waldump uses for it."""

from __future__ import annotations

import struct
import subprocess
from pathlib import Path

import pytest
from crc32c import crc32c
from full_logs import MAJORS

from quorum_wal.pg_fixtures.plugin import skip_if_unavailable
from quorum_wal.pg_server.binaries import find_postgres
from quorum_wal.pgwal.rmgr import RM_MAX_BUILTIN_ID, RM_XLOG_ID, rmgr_name
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.walrecords.operation import operation_name
from quorum_wal.walrecords.transaction import RM_XACT_ID

WAL_SEG_SIZE = 1 << 20
CUSTOM_RMGR_ID = 200


def _segment(major: int, segno: int, rmgr_id: int, infos: list[int]) -> bytes:
    """A record of each operation, on one page."""
    lsn = segno * WAL_SEG_SIZE
    wal = bytearray(struct.pack("<HHIQI4x", wal_version(major).page_magic, 2, 1, lsn, 0))
    wal += struct.pack("<QII", 1, WAL_SEG_SIZE, 8192)
    prev_lsn = lsn - WAL_SEG_SIZE
    for info in infos:
        body = b"\xff\x06" + bytes(6)
        head = struct.pack("<IIQBBH", 24 + len(body), 700, prev_lsn, info, rmgr_id, 0)
        prev_lsn = lsn + len(wal)
        wal += head + struct.pack("<I", crc32c(head, crc32c(body))) + body
    return bytes(wal.ljust(WAL_SEG_SIZE, b"\0"))


@pytest.mark.parametrize("major", MAJORS)
def test_every_operation_has_its_name(tmp_path: Path, major: int) -> None:
    with skip_if_unavailable():
        program = find_postgres(major).program("pg_waldump")
    for rmgr_id in (*range(RM_MAX_BUILTIN_ID + 1), CUSTOM_RMGR_ID):
        # Without the switch, which is shorter, and the upper bit of a commit, which is not part of
        # the operation.
        codes = 8 if rmgr_id == RM_XACT_ID else 16
        infos = [code << 4 for code in range(codes) if (rmgr_id, code) != (RM_XLOG_ID, 4)]
        segno = rmgr_id + 1
        path = tmp_path / format_segment_name(1, segno, WAL_SEG_SIZE)
        path.write_bytes(_segment(major, segno, rmgr_id, infos))
        output = subprocess.run(
            [program, "--stats=record", path], capture_output=True, text=True, check=False
        ).stdout
        path.unlink()
        rmgr = rmgr_name(rmgr_id, major)
        printed = {
            line[len(rmgr) + 1 :].split("  ")[0].strip()
            for line in output.splitlines()
            if line.startswith(f"{rmgr}/")
        }
        assert {operation_name(rmgr_id, info, major) for info in infos} == printed, rmgr
