"""What the first cut of a timeline waits for. Before it, no table can be restored.

base backup       the first checkpoint behind it
|-----------------|.............C        first cut: at C
begin_lsn         consistent_lsn
"""

from __future__ import annotations

from quorum_wal.pageserver.ingest.ingest import IngestState
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.telemetry.size import bytes_text


def first_cut_progress(state: IngestState | None) -> str:
    """A sentence; `state` is None before the ingest has started. Only for a timeline without
    cuts."""
    if state is None or not state.consistent_lsn:
        return "the pageserver reads the base backup"
    if state.phase in ("replaying", "uploading"):
        return f"the first cut is being made: {state.phase}"
    if state.received_lsn < state.consistent_lsn:
        got = max(0, state.received_lsn - state.begin_lsn)
        return (
            f"{bytes_text(got)} of the {bytes_text(state.consistent_lsn - state.begin_lsn)} of WAL "
            "that the base backup needs are received"
        )
    return (
        f"the first cut waits for a checkpoint of the primary after "
        f"{format_lsn(state.consistent_lsn)}: run CHECKPOINT, or wait for checkpoint_timeout"
    )
