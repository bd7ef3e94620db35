"""The newest file of a folder: WAL, or kept for later use."""

from __future__ import annotations

from pathlib import Path

import pytest
from wal_log import START_LSN, WAL_SEG_SIZE, WalLog

from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.pgwal.segment import format_segment_name
from quorum_wal.spark.inputs.segment_folder import open_folder


@pytest.mark.parametrize("pages", [1, 2])
def test_only_two_pages_of_zeros_say_that_a_file_is_unused(tmp_path: Path, pages: int) -> None:
    """A first page of zeros alone is damage, which is reported when it is read."""
    log = WalLog()
    for number in range(30):
        log.append(f"R{number}", 50_000)
    wal = log.wal.ljust(2 * WAL_SEG_SIZE, b"\0")
    wal[WAL_SEG_SIZE : WAL_SEG_SIZE + pages * WAL_PAGE_SIZE] = bytes(pages * WAL_PAGE_SIZE)
    first = START_LSN // WAL_SEG_SIZE
    for number in range(2):
        content = wal[number * WAL_SEG_SIZE :][:WAL_SEG_SIZE]
        (tmp_path / format_segment_name(1, first + number, WAL_SEG_SIZE)).write_bytes(content)
    assert len(open_folder(tmp_path).files) == 3 - pages
