"""Where the log of a joining safekeeper begins: late, but never above unarchived WAL."""

from __future__ import annotations

from typing import Any

import pytest

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.stream.joining import choose_start_lsn

SEG = 1 << 20
LIMIT = 9 * SEG + 4096


def member(local_start: int, *, archived: int | None = None, flush: int = LIMIT) -> dict[str, Any]:
    return {
        "local_start_lsn": format_lsn(local_start),
        "flush_lsn": format_lsn(flush),
        "archive": None if archived is None else {"archived_lsn": format_lsn(archived)},
    }


@pytest.mark.parametrize(
    ("statuses", "start_lsn"),
    [
        ([], 9 * SEG),
        ([member(SEG)], 9 * SEG),
        ([member(SEG, archived=LIMIT + SEG)], 9 * SEG),
        ([member(SEG, archived=5 * SEG + 8)], 5 * SEG),
        ([member(SEG, archived=5 * SEG), member(SEG, archived=4 * SEG)], 4 * SEG),
        ([member(SEG, archived=0)], SEG),
        ([member(7 * SEG, archived=5 * SEG)], 7 * SEG),
        ([member(7 * SEG, archived=5 * SEG), member(6 * SEG)], 6 * SEG),
        ([member(7 * SEG, archived=5 * SEG), member(6 * SEG, flush=8 * SEG)], 7 * SEG),
        ([member(SEG + 8, archived=0)], 2 * SEG),
        ([member(SEG, archived=5 * SEG, flush=8 * SEG)], 9 * SEG),
    ],
    ids=[
        "nobody tells",
        "no archive",
        "all is archived",
        "some is not",
        "the archives differ",
        "nothing is archived",
        "what is not archived is not there either",
        "one of them has more of it",
        "one that lags cannot bring the rest",
        "it begins inside a segment",
        "none has the end",
    ],
)
def test_where_it_begins(statuses: list[dict[str, Any]], start_lsn: int) -> None:
    assert choose_start_lsn(LIMIT, SEG, statuses) == start_lsn
