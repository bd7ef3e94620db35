"""Which role may run which command of a safekeeper: one table.

Law: a command that the table does not name is the admin's alone. A `client` has no business here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

from access.roles import Role
from pgwire import commands
from pgwire.commands import Command, OptionCommand, StartLogicalReplication, StartReplication
from pgwire.monitoring_query import MonitoringQuery

#: What proposers call themselves unless they are told otherwise: walproposer/safekeeper_client.py.
PROPOSER_USER = "walproposer"

_PROPOSER = frozenset({Role.PROPOSER})
_REPLICA = frozenset({Role.REPLICA})
_OBSERVER = frozenset({Role.PROPOSER, Role.MONITOR})
_ALL = frozenset(Role) - {Role.CLIENT}
_NOBODY: frozenset[Role] = frozenset()

#: Where nobody has to prove anything, so that idle clients of other names do not keep it out.
TRUSTED: Mapping[str, frozenset[Role]] = {PROPOSER_USER: _PROPOSER}

#: Besides ADMIN. Our own commands by their word, Postgres's by their type.
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
    "DELETE_TIMELINE": _NOBODY,
    "FORCE_MEMBERSHIP": _NOBODY,
    "FORGET_PAGESERVER": _NOBODY,
    commands.IdentifySystem: _REPLICA,
    commands.Show: _REPLICA,
    commands.TimelineHistory: _REPLICA,
    commands.StartReplication: _REPLICA,
    commands.CreateReplicationSlot: _REPLICA,
    commands.DropReplicationSlot: _REPLICA,
    commands.ReadReplicationSlot: _REPLICA,
    commands.AlterReplicationSlot: _REPLICA,
    # Not supported: a replica is told so, and where to go instead.
    commands.StartLogicalReplication: _REPLICA,
    commands.BaseBackup: _REPLICA,
    commands.UploadManifest: _REPLICA,
    # What clients that follow WAL ask by SQL.
    **dict.fromkeys(get_args(MonitoringQuery), _REPLICA),
}


def roles_for(command: Command) -> frozenset[Role]:
    """Those that may run it."""
    match command:
        case StartReplication(options={"node_id": _}):
            roles = _PROPOSER  # a donor's reader gets WAL that is not committed yet
        case OptionCommand("DELETE_TIMELINE", {"unfinished": "true"}):
            roles = _PROPOSER  # what is left of a creation that failed
        case OptionCommand(name):
            roles = ROLES.get(name, _NOBODY)
        case _:
            roles = ROLES.get(type(command), _NOBODY)
    return roles | {Role.ADMIN}


def command_name(command: Command) -> str:
    """As it is written: START_REPLICATION."""
    if isinstance(command, OptionCommand):
        return command.name
    if isinstance(command, StartLogicalReplication):
        return "START_REPLICATION LOGICAL"
    words = re.sub("(?<=[a-z])(?=[A-Z])", "_", type(command).__name__).upper()
    return words.partition("_")[0] if isinstance(command, get_args(MonitoringQuery)) else words
