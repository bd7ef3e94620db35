"""What a server of this machine is, by its data directory and by what it answers. Pure.

    postmaster.pid      standby.signal   a connection says      the server is
    none, or of a dead process                                  absent
    starting                                                    starting
    stopping                                                    stopping
    standby             there / not                             a standby / in recovery
    ready               there / not      "in recovery"          a standby / in recovery
    ready                                "not in recovery"      a primary
    ready                                nothing                silent

A server that recovers from a crash is starting; after a crash of one of its processes the file says
"ready" all the time, and connections are refused meanwhile. Sources: postmaster.c, xlog.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ServerState(Enum):
    """As the log says it."""

    ABSENT = "absent"
    STARTING = "starting"
    RECOVERING = "in recovery"
    STANDBY = "a standby"
    PRIMARY = "a primary"
    STOPPING = "stopping"
    SILENT = "not answering"


@dataclass(frozen=True, slots=True)
class Seen:
    """The server at one moment. `pid`: of a postmaster that lives, None without one; `status` is
    what its file says. `in_recovery`: what a connection answered; None when there was none, for
    `reason`."""

    pid: int | None = None
    status: str = ""
    has_standby_signal: bool = False
    in_recovery: bool | None = None
    reason: str = ""

    @property
    def state(self) -> ServerState:
        """By the table above."""
        if self.pid is None:
            return ServerState.ABSENT
        if self.status == "stopping":
            return ServerState.STOPPING
        if self.status == "standby" or (self.status == "ready" and self.in_recovery):
            return ServerState.STANDBY if self.has_standby_signal else ServerState.RECOVERING
        if self.status != "ready":
            return ServerState.STARTING
        return ServerState.SILENT if self.in_recovery is None else ServerState.PRIMARY
