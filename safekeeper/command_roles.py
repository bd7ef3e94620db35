"""Which role may run which command of a safekeeper: one table.

Law: only the admin may run a command that the table does not name. A `client` may run none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from quorum_wal.access.roles import Role
from quorum_wal.pgwire import commands
from quorum_wal.pgwire.commands import (
    Command,
    OptionCommand,
    StartLogicalReplication,
    StartReplication,
)
from quorum_wal.pgwire.monitoring_query import MonitoringQuery

#: The proposers' default user name: walproposer/safekeeper_client.py.
PROPOSER_USER = "walproposer"

_PROPOSER = frozenset({Role.PROPOSER})
_REPLICA = frozenset({Role.REPLICA})
_OBSERVER = frozenset({Role.PROPOSER, Role.MONITOR})
_ALL = frozenset(Role) - {Role.CLIENT}
_ADMIN_ONLY: frozenset[Role] = frozenset()
#: Used without authentication, so that idle clients of other names do not keep a proposer out.
TRUSTED: Mapping[str, frozenset[Role]] = {PROPOSER_USER: _PROPOSER}

#: Roles besides ADMIN. Our own commands by their word, Postgres's by their type.
ROLES: Mapping[str | type, frozenset[Role]] = {
    "IDENTIFY_SAFEKEEPER": _ALL,
    "LIST_TIMELINES": _OBSERVER,
    "TIMELINE_STATUS": _OBSERVER,
    "START_WAL_PUSH": _PROPOSER,
    "CREATE_TIMELINE": _PROPOSER,
    "ACTIVATE_TIMELINE": _PROPOSER,
    "JOIN_TIMELINE": _PROPOSER,
    "LEAVE_TIMELINE": _PROPOSER,
    "MEND_SEGMENT": _PROPOSER,
    "DELETE_TIMELINE": _ADMIN_ONLY,
    "FORCE_MEMBERSHIP": _ADMIN_ONLY,
    "FORGET_PAGESERVER": _ADMIN_ONLY,
    commands.IdentifySystem: _REPLICA,
    commands.Show: _REPLICA,
    commands.TimelineHistory: _REPLICA,
    commands.StartReplication: _REPLICA,
    commands.CreateReplicationSlot: _REPLICA,
    commands.DropReplicationSlot: _REPLICA,
    commands.ReadReplicationSlot: _REPLICA,
    commands.AlterReplicationSlot: _REPLICA,
    # Not supported: the error says so and names an alternative.
    commands.StartLogicalReplication: _REPLICA,
    commands.BaseBackup: _REPLICA,
    commands.UploadManifest: _REPLICA,
    # SQL queries of clients that follow WAL.
    **dict.fromkeys(get_args(MonitoringQuery), _REPLICA),
}


def roles_for(command: Command) -> frozenset[Role]:
    """The roles that may run `command`."""
    match command:
        case StartReplication(options={"node_id": _}):
            roles = _PROPOSER  # a donor's reader gets WAL that is not committed yet
        case OptionCommand("DELETE_TIMELINE", {"unfinished": "true"}):
            roles = _PROPOSER  # the remains of a creation that failed
        case OptionCommand(name):
            roles = ROLES.get(name, _ADMIN_ONLY)
        case _:
            roles = ROLES.get(type(command), _ADMIN_ONLY)
    return roles | {Role.ADMIN}


def command_name(command: Command) -> str:
    """The command's words: START_REPLICATION."""
    if isinstance(command, OptionCommand):
        return command.name
    if isinstance(command, StartLogicalReplication):
        return "START_REPLICATION LOGICAL"
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(command).__name__).upper()
    return words.partition("_")[0] if isinstance(command, get_args(MonitoringQuery)) else words
