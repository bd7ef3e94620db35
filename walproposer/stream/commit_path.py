"""How commits travel, in words: for the log, and for the status page.

The steady path needs plain connections to the primary and to everybody who follows; with one that
is encrypted all commits take the general path. So that nobody need wonder what a commit costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from storage.compiled import how_it_runs
from walproposer.safekeeper_client import SafekeeperAddress
from walproposer.stream.copy_connection import CopyConnection
from walproposer.stream.plain_copy import PlainCopy
from walproposer.stream.progress import PeerState, Progress

log = structlog.get_logger()

MODULES = ("walproposer.stream.steady_loop", "walproposer.stream.steady_leader")


def commit_path(
    upstream: CopyConnection | None,
    peers: Iterable[Progress],
    connections: Mapping[int, CopyConnection],
    addresses: Mapping[int, SafekeeperAddress],
) -> str:
    """ "compiled" or "interpreted": what runs the steady path; or that there is none, and why."""
    if upstream is None:
        return "none, the primary does not stream"
    if not isinstance(upstream, PlainCopy):
        return "none, the connection to the primary is encrypted"
    following = [p for p in peers if p.is_following]
    for p in following:
        if not isinstance(connections.get(p.peer), PlainCopy | None):
            return f"none, the connection to safekeeper {addresses.get(p.peer)} is encrypted"
    for p in following:
        if p.state is PeerState.CATCHING_UP:
            return f"none now, safekeeper {addresses.get(p.peer)} is catching up"
    return "compiled" if {how_it_runs(name) for name in MODULES} == {"compiled"} else "interpreted"


class PathNote:
    """In the log, once for each that is not the one before."""

    def __init__(self) -> None:
        self._said = ""

    def say(self, path: str) -> None:
        if path != self._said:
            self._said = path
            log.info("commits travel", steady_path=path)
