"""Chooses the checkpoints after which cuts are made. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.pageserver.layers.touches import Checkpoint

CUT_BYTES = 1 << 30
CUT_SECONDS = 15 * 60.0


@dataclass(frozen=True, slots=True)
class CutRule:
    """A cut is due after the first checkpoint that is at least this much WAL, or this much time,
    after the previous cut."""

    cut_bytes: int = CUT_BYTES
    cut_seconds: float = CUT_SECONDS

    def is_due(self, last: Checkpoint | None, candidate: Checkpoint, consistent_lsn: int) -> bool:
        """`last` is None before the first cut, which must be after `consistent_lsn`, the end of the
        base backup."""
        if last is None:
            return candidate.start_lsn >= consistent_lsn
        return candidate.end_lsn > last.end_lsn and (
            candidate.end_lsn - last.end_lsn >= self.cut_bytes
            or (candidate.at - last.at).total_seconds() >= self.cut_seconds
        )
