"""The quorum's log as the answering safekeepers report it. Only an election proves it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.history import TimelineHistory
from quorum_wal.pgwal.lsn import Lsn

#: A proposer sends something every second. One that has not for this long may be lost.
HEARD_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class LogView:
    """`flush_lsn` is the greatest. The history is that of the safekeeper that would be the
    donor. `proposer` describes the proposer that streams now; "" if there is none."""

    flush_lsn: int
    start_lsn: int
    history: TimelineHistory
    answering: int
    proposer: str = ""


def log_view(statuses: Sequence[Mapping[str, Any]]) -> LogView:
    """From the members' statuses of the timeline; at least one is required."""
    best = max(statuses, key=lambda s: (_node_id(s["last_log_node_id"]), parse(s["flush_lsn"])))
    return LogView(
        flush_lsn=max(parse(status["flush_lsn"]) for status in statuses),
        start_lsn=parse(best["start_lsn"]),
        history=TimelineHistory.parse(best["tli"], best["tli_history"]),
        answering=len(statuses),
        proposer=_streaming(statuses),
    )


def _streaming(statuses: Sequence[Mapping[str, Any]]) -> str:
    """The proposer with the greatest NodeId of which a member has heard lately. A connection alone
    proves nothing: that of a lost machine stays open for a while."""
    heard = [
        named
        for status in statuses
        if (named := status.get("proposer"))
        and named.get("silent_seconds", 0.0) <= HEARD_SECONDS_MAX
    ]
    if not heard:
        return ""
    latest = max(heard, key=lambda named: _node_id(named["node_id"]))
    members = sum(named["node_id"] == latest["node_id"] for named in heard)
    page = f", status page {latest['http']}" if latest["http"] else ""
    return (
        f"the proposer of term {latest['node_id']['term']} at {latest['address']}{page} streams to "
        f"{members} safekeepers"
    )


def _node_id(status: Mapping[str, Any]) -> NodeId:
    return NodeId(status["term"], bytes.fromhex(status["uuid"]))


def parse(lsn: str) -> int:
    return int(Lsn.parse(lsn))
