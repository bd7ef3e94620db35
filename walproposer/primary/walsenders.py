"""The clients that a primary streams to, and which of them is our proposer.

Ours is the one that uses our slot: any client can use a name, but a slot has one holder. Source:
Postgres `system_views.sql`, pg_stat_replication and pg_replication_slots. To a role without
pg_read_all_stats Postgres shows names only; `state` and `sync_state` are then "".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg

STREAMING = "streaming"
#: sync_state of the standbys whose confirmation releases commits: by priority, or as one of a
#: quorum.
RELEASING = ("sync", "quorum")

# In one statement, so that a proposer that connects or disconnects is seen with its slot, or not at
# all.
_WALSENDERS = (
    "SELECT r.pid, coalesce(application_name, ''), coalesce(slot_name, ''),"
    " coalesce(host(client_addr), ''), coalesce(usename, ''), coalesce(state, ''),"
    " coalesce(sync_state, '')"
    " FROM pg_stat_replication r LEFT JOIN pg_replication_slots s ON s.active_pid = r.pid"
    " ORDER BY r.pid"
)


@dataclass(frozen=True, slots=True)
class WalSender:
    """A row of pg_stat_replication. `slot` is "" if it uses none, `client_addr` is "" for a Unix
    socket."""

    pid: int
    application_name: str
    slot: str = ""
    client_addr: str = ""
    role: str = ""
    state: str = STREAMING
    sync_state: str = "async"

    @property
    def releases_commits(self) -> bool:
        return self.sync_state in RELEASING

    def __str__(self) -> str:
        if not self.state:
            return f'"{self.application_name}" (pid {self.pid})'
        place = self.client_addr or "a Unix socket"
        return f'"{self.application_name}" (pid {self.pid}, role {self.role}, from {place})'


def read_walsenders(connection: psycopg.Connection) -> tuple[WalSender, ...]:
    return tuple(WalSender(*row) for row in connection.execute(_WALSENDERS).fetchall())


def names_of(walsenders: Sequence[WalSender]) -> str:
    return " and ".join(map(str, walsenders))
