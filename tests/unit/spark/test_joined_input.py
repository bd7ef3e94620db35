"""The change from the archive to the safekeepers, while both advance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pytest

from quorum_wal.pgwal.page import WAL_PAGE_SIZE
from quorum_wal.spark.inputs.joined_input import JoinedInput
from quorum_wal.spark.inputs.wal_input import LostWal, WalChunk

MIB = 1 << 20
PAGES = 4 * MIB // WAL_PAGE_SIZE
WAL = b"".join(bytes([page % 251]) * WAL_PAGE_SIZE for page in range(PAGES))


class Part:
    """It has [begin_lsn, end_lsn) of WAL, which may change while it is read."""

    def __init__(self, begin_lsn: int, end_lsn: int) -> None:
        self.begin_lsn = begin_lsn
        self.end_lsn = end_lsn
        self.reads: list[int] = []

    def read(self, lsn: int, end_lsn: int | None = None) -> Iterator[WalChunk]:
        self.reads.append(lsn)
        end_lsn = self.end_lsn if end_lsn is None else min(end_lsn, self.end_lsn)
        while lsn < end_lsn:
            if lsn < self.begin_lsn:
                raise LostWal(lsn, "it was removed")
            behind = min(lsn - lsn % MIB + MIB, end_lsn)
            yield WalChunk(lsn, WAL[lsn:behind], "part")
            lsn = behind


def joined(archive: Part, safekeepers: Part) -> JoinedInput:
    return JoinedInput(cast("Any", archive), cast("Any", safekeepers))


def test_wal_archived_and_removed_meanwhile_is_read_from_the_archive() -> None:
    archive, safekeepers = Part(0, MIB), Part(MIB, len(WAL))
    chunks = joined(archive, safekeepers).read(0, len(WAL))
    found = next(chunks).data
    # A slow reader: meanwhile WAL is archived and removed.
    archive.end_lsn = safekeepers.begin_lsn = 3 * MIB
    found += b"".join(chunk.data for chunk in chunks)
    assert found == WAL
    assert safekeepers.reads == [MIB, 3 * MIB]


def test_wal_that_neither_has_is_lost() -> None:
    chunks = joined(Part(0, MIB), Part(2 * MIB, len(WAL))).read(0, len(WAL))
    assert next(chunks).data == WAL[:MIB]
    with pytest.raises(LostWal) as lost:
        next(chunks)
    assert lost.value.lsn == MIB
