"""When a proposer attaches to its supervised server, and when it ends. Pure.

    absent -> starting -> in recovery -> a standby -> a primary -> stopping -> absent -> End
                                                      Attach                   after RESTART_SECONDS

`step(seen, now) -> list[Action]` is the only mutator. A server that ended may restart in a moment,
as with `pg_ctl restart`. If it does not, the process ends. It also ends if the server comes back as
a standby: a new process begins without a term.
"""

from __future__ import annotations

from dataclasses import dataclass

from quorum_wal.walproposer.supervision.server_state import Seen, ServerState

RESTART_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Report:
    """The state of the server has changed. The reason may be ""."""

    state: ServerState
    reason: str


@dataclass(frozen=True, slots=True)
class Attach:
    """The server is a primary. Repeated on each check while it is."""


@dataclass(frozen=True, slots=True)
class End:
    """There is no server to attach to any more."""

    reason: str


Action = Report | Attach | End


class Supervision:
    """`now` is by a monotonic clock."""

    def __init__(self) -> None:
        self.state: ServerState | None = None
        self._reason = ""
        #: None while no server was seen.
        self._seen_at: float | None = None
        self._was_primary = False

    def step(self, seen: Seen, now: float) -> list[Action]:
        actions: list[Action] = []
        if (seen.state, seen.reason) != (self.state, self._reason):
            self.state, self._reason = seen.state, seen.reason
            actions.append(Report(seen.state, seen.reason))
        if seen.state is not ServerState.ABSENT:
            self._seen_at = now
        elif self._seen_at is not None and now - self._seen_at >= RESTART_SECONDS:
            return [*actions, End("the server has ended")]
        if seen.state is ServerState.PRIMARY:
            self._was_primary = True
            return [*actions, Attach()]
        if self._was_primary and seen.state in (ServerState.STANDBY, ServerState.RECOVERING):
            return [*actions, End("the server came back as a standby")]
        return actions
