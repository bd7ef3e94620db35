"""Describes the path of commits, for the log and the status page.

The steady path needs unencrypted connections to the primary and to every safekeeper that follows.
If one of them is encrypted, all commits take the general path, which costs more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from quorum_wal.storage.compiled import how_it_runs
from quorum_wal.walproposer.stream.plain_copy import PlainCopy
from quorum_wal.walproposer.stream.progress import PeerState

if TYPE_CHECKING:
    from quorum_wal.walproposer.stream.incarnation import Incarnation

log = structlog.get_logger()

MODULES = (
    "quorum_wal.walproposer.stream.steady_loop",
    "quorum_wal.walproposer.stream.steady_leader",
)

#: Logged when there is no steady path.
NO_FAULT = "this is no fault: commits are as safe, and take a little more processor time"


def commit_path(incarnation: Incarnation) -> str:
    """How the steady path runs: "compiled" or "interpreted"; or that there is none, and why. Any
    thread may call it."""
    upstream, addresses = incarnation.upstream, incarnation.peers.addresses
    if upstream is None or upstream.copy is None:
        return "none, the primary does not stream"
    if not isinstance(upstream.copy, PlainCopy):
        return "none, the connection to the primary is encrypted"
    following = [p for p in [*incarnation.core.peers] if p.is_following]
    for p in following:
        if not isinstance(incarnation.peers.open.get(p.peer), PlainCopy | None):
            return f"none, the connection to safekeeper {addresses.get(p.peer)} is encrypted"
    for p in following:
        if p.state is PeerState.CATCHING_UP:
            return f"none now, safekeeper {addresses.get(p.peer)} is catching up"
    return "compiled" if {how_it_runs(name) for name in MODULES} == {"compiled"} else "interpreted"


class PathLog:
    """Logs the path when it changes."""

    def __init__(self) -> None:
        self._last = ""

    def update(self, incarnation: Incarnation) -> None:
        path = commit_path(incarnation)
        if path != self._last:
            self._last = path
            note = {"note": NO_FAULT} if path.startswith("none") else {}
            log.info("commit path", steady_path=path, **note)
