"""What changed between two status pages of a proposer, as events. Pure.

The core does not log elections and catch-ups. They are found by comparing the states of two
samples. A state that begins and ends between two samples is missed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from quorum_wal.cluster.member_view import Status
from quorum_wal.telemetry.recent_events import Event

CATCHING_UP, LEFT_BEHIND = "catching up", "left behind"
FOLLOWING = ("streaming", "chained")


def state_changes(before: Status, now: Status, at: datetime) -> Iterator[Event]:
    """`before` may be empty."""
    term, known = _term(now), _term(before)
    if now["state"] == "streaming" and (before.get("state") != "streaming" or term != known):
        yield Event(at, "info", f"election won, term {term}")
    elif now["state"] != before.get("state"):
        yield Event(at, "info", f"the proposer is {now['state'].replace('_', ' ')}")
    states = {peer["address"]: peer.get("state") for peer in before.get("safekeepers", ())}
    for peer in now.get("safekeepers", ()):
        yield from _peer_changes(states.get(peer["address"]), peer, at)


def _peer_changes(known: str | None, peer: Status, at: datetime) -> Iterator[Event]:
    state = peer.get("state")
    if known is None or state == known:
        return
    name = f"safekeeper {peer.get('id') or ''} ({peer['address']})".replace("  ", " ")
    if state in FOLLOWING and known not in FOLLOWING:
        yield Event(at, "info", f"{name} follows", f"it was {known}")
    elif state == CATCHING_UP:
        yield Event(at, "info", f"{name} is catching up", f"{peer['lag_bytes']} bytes behind")


def _term(page: Status) -> int:
    return int((page.get("node_id") or {}).get("term", 0))
