"""The roles of users.

    proposer   requests votes, appends WAL, reads uncommitted WAL, creates timelines, lets
               safekeepers join and leave them
    replica    reads committed WAL, and has slots
    monitor    reads the status
    client     asks a proposer whether a quorum has transactions
    admin      everything

Each listener has a table of the roles that its commands need. Pure.
"""

from __future__ import annotations

from enum import Enum

from quorum_wal.access.errors import PermissionDenied


class Role(Enum):
    """The role of a user, who may have several."""

    PROPOSER = "proposer"
    REPLICA = "replica"
    MONITOR = "monitor"
    CLIENT = "client"
    ADMIN = "admin"


def check_role(user: str, roles: frozenset[Role], wanted: frozenset[Role], command: str) -> None:
    """Raises PermissionDenied (42501) unless one of the user's `roles` is `wanted` for it."""
    if not roles & wanted:
        names = " or ".join(role.value for role in Role if role in wanted)
        raise PermissionDenied(
            f'permission denied for user "{user}": {command} needs the role {names}',
            hint="Connect as another user, or give this one the role with sk user add --replace.",
        )
