"""What a pageserver says about the first cut of a timeline."""

from __future__ import annotations

import pytest

from quorum_wal.pageserver.ingest.first_cut import first_cut_progress
from quorum_wal.pageserver.ingest.ingest import IngestState

MIB = 1 << 20


def state(phase: str, received_lsn: int) -> IngestState:
    """Of a database at 5 GiB whose base backup needs 4 MiB of WAL."""
    begin_lsn = 5 << 30
    return IngestState(
        phase=phase,
        received_lsn=received_lsn and begin_lsn + received_lsn,
        begin_lsn=begin_lsn,
        consistent_lsn=begin_lsn + 4 * MIB,
    )


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "the pageserver reads the base backup"),
        (IngestState(phase="opening"), "the pageserver reads the base backup"),
        (state("receiving", 0), "0 B of the 4.0 MiB of WAL"),
        (state("receiving", MIB), "1.0 MiB of the 4.0 MiB of WAL"),
        (state("receiving", 9 * MIB), "waits for a checkpoint of the primary after 1/40400000"),
        (state("replaying", 9 * MIB), "is being made: replaying"),
    ],
)
def test_first_cut_progress(found: IngestState | None, says: str) -> None:
    assert says in first_cut_progress(found)
