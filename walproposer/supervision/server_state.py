"""The state of a server on this machine, by its data directory and its answer. Pure.

    postmaster.pid      standby.signal   a connection reports   the server is
    none, or of a dead process                                  absent
    starting                                                    starting
    stopping                                                    stopping
    standby             exists / not                            a standby / in recovery
    ready               exists / not     "in recovery"          a standby / in recovery
    ready                                "not in recovery"      a primary
    ready                                nothing                silent

A server in crash recovery is starting. After a crash of one of its processes the file still has
"ready", and connections are refused meanwhile. Sources: postmaster.c, xlog.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ServerState(Enum):
    """The values are the words in the log."""

    ABSENT = "absent"
    STARTING = "starting"
    RECOVERING = "in recovery"
    STANDBY = "a standby"
    PRIMARY = "a primary"
    STOPPING = "stopping"
    SILENT = "not answering"


@dataclass(frozen=True, slots=True)
class Seen:
    """The server at one moment. `pid`: of a running postmaster, or None. `status` is that of its
    file. `in_recovery`: the answer of a connection; None if there was none, for `reason`."""

    pid: int | None = None
    status: str = ""
    has_standby_signal: bool = False
    in_recovery: bool | None = None
    reason: str = ""

    @property
    def state(self) -> ServerState:
        """The state by the table above."""
        if self.pid is None:
            return ServerState.ABSENT
        if self.status == "stopping":
            return ServerState.STOPPING
        if self.status == "standby" or (self.status == "ready" and self.in_recovery):
            return ServerState.STANDBY if self.has_standby_signal else ServerState.RECOVERING
        if self.status != "ready":
            return ServerState.STARTING
        return ServerState.SILENT if self.in_recovery is None else ServerState.PRIMARY
