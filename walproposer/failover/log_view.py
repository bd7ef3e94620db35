"""The quorum's log as the answering safekeepers report it. Only an election proves it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn


@dataclass(frozen=True, slots=True)
class LogView:
    """`flush_lsn` is the greatest. The history is that of the safekeeper that would be the
    donor."""

    flush_lsn: int
    start_lsn: int
    history: TimelineHistory
    answering: int


def log_view(statuses: Sequence[Mapping[str, Any]]) -> LogView:
    """From the members' statuses of the timeline; at least one is required."""
    best = max(statuses, key=lambda s: (_node_id(s["last_log_node_id"]), parse(s["flush_lsn"])))
    return LogView(
        flush_lsn=max(parse(status["flush_lsn"]) for status in statuses),
        start_lsn=parse(best["start_lsn"]),
        history=TimelineHistory.parse(best["tli"], best["tli_history"]),
        answering=len(statuses),
    )


def _node_id(status: Mapping[str, Any]) -> NodeId:
    return NodeId(status["term"], bytes.fromhex(status["uuid"]))


def parse(lsn: str) -> int:
    return int(Lsn.parse(lsn))
