"""When a proposer attaches to the server that it lives with, and when it ends. Pure.

    absent -> starting -> in recovery -> a standby -> a primary -> stopping -> absent -> End
                                                      Attach                   after RESTART_SECONDS

`step(seen, now) -> list[Action]` is the only mutator. A server that ended may be back in a moment,
as after `pg_ctl restart`: the process ends when it is not. It ends, too, when the server comes back
as a standby: who is started anew begins without a term.
"""

from __future__ import annotations

from dataclasses import dataclass

from walproposer.supervision.server_state import Seen, ServerState

RESTART_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Tell:
    """The server is no longer what it was; the reason may be ""."""

    state: ServerState
    reason: str


@dataclass(frozen=True, slots=True)
class Attach:
    """It is a primary; said at every look for as long as it is."""


@dataclass(frozen=True, slots=True)
class End:
    """There is nothing to attach to any more."""

    reason: str


Action = Tell | Attach | End


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
            actions.append(Tell(seen.state, seen.reason))
        if seen.state is not ServerState.ABSENT:
            self._seen_at = now
        elif self._seen_at is not None and now - self._seen_at >= RESTART_SECONDS:
            return [*actions, End("the server has ended")]
        if seen.state is ServerState.PRIMARY:
            self._was_primary = True
            return [*actions, Attach()]
        if self._was_primary and seen.state in (ServerState.STANDBY, ServerState.RECOVERING):
            return [*actions, End("the server came back as no primary")]
        return actions
