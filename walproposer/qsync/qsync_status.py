"""The coordinator's status: QSYNC_STATUS, and its part of /status and of the metrics.

The names are those of Tarantool's synchronous queue where it has them: owner, term, len, age,
confirm_lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quorum_wal.consensus.ids import NodeId
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.walproposer.qsync.limbo import Limbo
from quorum_wal.walproposer.qsync.limbo_events import Verdict


def idle_status(address: str, reason: str) -> dict[str, Any]:
    """The status while there is no coordinator, for this reason: the limbo is unknown."""
    return {"address": address, "owner": None, "is_deciding": False, "refuses": reason}


def failed_status(last: Mapping[str, Any], error: str) -> dict[str, Any]:
    """The status after a bug: no incarnation leads, and the counters stay."""
    no_leader = {"term": 0, "quorum_ok": False, "waiting": 0, "streams": {}}
    return {**last, **no_leader, **idle_status(last["address"], error)}


def qsync_status(
    limbo: Limbo,
    node_id: NodeId | None,
    *,
    quorum: int,
    address: str,
    waiting: int,
    adopted: int,
    confirm_lag_seconds: float,
    streams: dict[str, str],
) -> dict[str, Any]:
    """JSON values. Seconds are floats, LSNs are in Postgres' format. `owner` is null while no
    incarnation leads. `quorum` is the number of safekeepers that must have a PREPARE. `pending` and
    `confirmed` count answers, `committed` and `rollback_count` transactions finished by the
    janitor, `adopted` those found prepared when an incarnation began to lead."""
    rows, refusal = limbo.rows(), limbo.admission()
    oldest = max(rows, key=lambda row: row.age_ms, default=None)
    counts = limbo.counts
    return {
        "address": address,
        "owner": node_id.proposer_uuid.hex() if node_id is not None else None,
        "term": node_id.term if node_id is not None else 0,
        "is_deciding": limbo.is_deciding,
        "refuses": refusal.text if refusal is not None else None,
        "quorum": quorum,
        "quorum_ok": limbo.is_quorum_ok if node_id is not None else False,
        "commit_lsn": format_lsn(limbo.commit_lsn),
        "order": limbo.settings.order.value,
        "len": len(rows),
        "len_max": limbo.settings.limbo_max,
        "age": round(limbo.age_ms / 1000, 1),
        "oldest": str(oldest.entry.gid) if oldest is not None else None,
        "unconfirmed": sum(not row.is_confirmed for row in rows),
        "confirm_lag": round(confirm_lag_seconds, 4),
        "waiting": waiting,
        "foreign": limbo.table.foreign_count,
        "confirmed": counts[Verdict.CONFIRMED.value],
        "pending": counts[Verdict.PENDING.value],
        "committed": counts["janitor committed"],
        "rollback_count": counts["janitor rolled back"],
        "adopted": adopted,
        "streams": streams,
    }
