"""What users are for.

    proposer   asks for votes, appends WAL, reads what is not committed yet, creates timelines, and
               has safekeepers join and leave them
    replica    reads committed WAL, and keeps slots
    monitor    asks for the status
    client     asks a proposer whether transactions are on a quorum
    admin      everything

Which command needs which of them is a table of each listener. Pure.
"""

from __future__ import annotations

from enum import Enum

from access.errors import PermissionDenied


class Role(Enum):
    """What a user is for; it may have several."""

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
