"""Status pages of a cluster of three as its services would print them, with any faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from quorum_wal.cluster.timeline_view import TimelineView, timeline_views
from quorum_wal.consensus.ids import TimelineId
from quorum_wal.walproposer.timelines.discovery import Discovery, ProposerReport, SafekeeperReport

TIMELINE = TimelineId(bytes(16), bytes.fromhex("ab" * 16))
NOW = datetime(2026, 1, 31, 12, 0, 30, tzinfo=UTC)
HTTP = "10.0.0.9:7677"
OTHER_HTTP = "10.0.0.8:7677"
REFUSED = "could not connect: Connection refused"


def node_id(term: int) -> dict[str, Any]:
    return {"term": term, "uuid": f"{term:032x}"}


def address(safekeeper_id: int) -> str:
    return f"10.0.0.{safekeeper_id}:5454"


def instance(safekeeper_id: int) -> str:
    return f"{safekeeper_id:016x}"


def membership(
    *members: int,
    new: Sequence[int] = (),
    term: int = 5,
    generation: int = 1,
    sites: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """As in consensus/membership_page.py; 1, 2, 3 by default."""
    ids = members or (1, 2, 3)
    return {
        "author": f"{term}/{term:032x}",
        "generation": generation,
        "members": list(ids),
        "new_members": list(new),
        "roster": [
            {
                "id": i,
                "instance": instance(i),
                "address": address(i),
                "site": (sites or {}).get(i, ""),
            }
            for i in sorted({*ids, *new})
        ],
    }


def proposer_of(term: int, http: str = HTTP) -> dict[str, Any]:
    """A safekeeper's report about the proposer that streams to it."""
    return {"node_id": node_id(term), "address": "10.0.0.9:40000", "http": http}


def timeline_status(**changes: Any) -> dict[str, Any]:
    """As in safekeeper/status.py."""
    return {
        "state": "active",
        "active": True,
        "stopped_reason": None,
        "system_id": "7",
        "pg_version": 150018,
        "wal_seg_size": 16 << 20,
        "membership": membership(),
        "promised": node_id(5),
        "local_start_lsn": "0/1000000",
        "flush_lsn": "0/2000000",
        "commit_lsn": "0/2000000",
        "archive": None,
        "retention": {"member_left_behind": False},
        "proposer": proposer_of(5),
        "last_proposer": None,
        "last_leader": None,
        **changes,
    }


def safekeeper(safekeeper_id: int, **changes: Any) -> SafekeeperReport:
    """One that answers and has the timeline."""
    return SafekeeperReport(
        address(safekeeper_id),
        safekeeper_id=safekeeper_id,
        version="0.1.0",
        instance=instance(safekeeper_id),
        timelines={TIMELINE: timeline_status(**changes)},
        disk={"free_bytes": 50 << 30, "total_bytes": 100 << 30},
    )


def silent(safekeeper_id: int) -> SafekeeperReport:
    return SafekeeperReport(address(safekeeper_id), error=REFUSED)


def emptied(safekeeper_id: int, damaged: Mapping[str, str] | None = None) -> SafekeeperReport:
    """It answers, and has no timeline."""
    return SafekeeperReport(
        address(safekeeper_id),
        safekeeper_id=safekeeper_id,
        instance=instance(safekeeper_id),
        damaged=damaged or {},
    )


def departed(safekeeper_id: int, **changes: Any) -> SafekeeperReport:
    """It has left the timeline."""
    status = timeline_status(state="left", proposer=None, **changes)
    return SafekeeperReport(
        address(safekeeper_id),
        safekeeper_id=safekeeper_id,
        instance=instance(safekeeper_id),
        left={TIMELINE: status},
    )


def peer(safekeeper_id: int, **changes: Any) -> dict[str, Any]:
    """The proposer's report about a safekeeper; as in walproposer/status.py."""
    return {
        "id": safekeeper_id,
        "address": address(safekeeper_id),
        "state": "streaming",
        "connected": True,
        "lag_bytes": 0,
        "lag_seconds": 0.0,
        "error": None,
        "silent_seconds": 0.1,
        **changes,
    }


def lost_peer(safekeeper_id: int) -> dict[str, Any]:
    return peer(safekeeper_id, state="offline", connected=False, error="gone", silent_seconds=20.0)


def page(*peers: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The page of the proposer."""
    return {
        "state": "streaming",
        "node_id": node_id(5),
        "timeline_id": TIMELINE.timeline_id.hex(),
        "primary": {"dsn": "host=db", "connected": True},
        "quorum": {"ok": True, "since": "2026-01-31T11:59:00+00:00"},
        "safekeepers": list(peers) or [peer(1), peer(2), peer(3)],
        **changes,
    }


@dataclass
class Answers:
    """A healthy cluster, unless changed; `pages` by address, None for a page that does not
    answer."""

    safekeepers: list[SafekeeperReport] = field(
        default_factory=lambda: [safekeeper(1), safekeeper(2), safekeeper(3)]
    )
    pages: dict[str, dict[str, Any] | None] = field(default_factory=lambda: {HTTP: page()})

    def view(self) -> TimelineView:
        reports = {
            http: ProposerReport(http, found, "" if found else f"{http} is silent", NOW)
            for http, found in self.pages.items()
        }
        (view,) = timeline_views(Discovery(tuple(self.safekeepers), reports))
        return view
