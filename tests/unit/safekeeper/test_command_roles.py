"""The table of commands and roles: every cell."""

from __future__ import annotations

from typing import get_args

import pytest

from quorum_wal.access.errors import PermissionDenied
from quorum_wal.access.roles import Role, check_role
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.pgwire import commands, monitoring_query
from quorum_wal.pgwire.commands import OPTION_COMMANDS, Command, OptionCommand, StartReplication
from quorum_wal.safekeeper.command_roles import ROLES, command_name, roles_for

EXPECTED = {
    "IDENTIFY_SAFEKEEPER": "proposer replica monitor",
    "LIST_TIMELINES": "proposer monitor",
    "TIMELINE_STATUS": "proposer monitor",
    "START_WAL_PUSH": "proposer",
    "CREATE_TIMELINE": "proposer",
    "ACTIVATE_TIMELINE": "proposer",
    "JOIN_TIMELINE": "proposer",
    "LEAVE_TIMELINE": "proposer",
    "MEND_SEGMENT": "proposer",
    "DELETE_TIMELINE": "",
    "FORGET_PAGESERVER": "",
    "FORCE_MEMBERSHIP": "",
    "DELETE_TIMELINE unfinished": "proposer",
    "IDENTIFY_SYSTEM": "replica",
    "SHOW": "replica",
    "TIMELINE_HISTORY": "replica",
    "START_REPLICATION": "replica",
    "START_REPLICATION node_id": "proposer",
    "START_REPLICATION LOGICAL": "replica",
    "CREATE_REPLICATION_SLOT": "replica",
    "DROP_REPLICATION_SLOT": "replica",
    "READ_REPLICATION_SLOT": "replica",
    "ALTER_REPLICATION_SLOT": "replica",
    "BASE_BACKUP": "replica",
    "UPLOAD_MANIFEST": "replica",
    "SELECT 1": "replica",
    "SELECT setting": "replica",
    "SELECT slot": "replica",
    "SELECT pg_has_role": "replica",
    "SET application_name": "replica",
}

LSN = Lsn(1 << 24)
COMMANDS: dict[str, Command] = {
    **{name: OptionCommand(name) for name in sorted(OPTION_COMMANDS)},
    "DELETE_TIMELINE unfinished": OptionCommand("DELETE_TIMELINE", {"unfinished": "true"}),
    "IDENTIFY_SYSTEM": commands.IdentifySystem(),
    "SHOW": commands.Show("port"),
    "TIMELINE_HISTORY": commands.TimelineHistory(1),
    "START_REPLICATION": StartReplication(LSN, slot="s"),
    "START_REPLICATION node_id": StartReplication(LSN, options={"node_id": "1/00"}),
    "START_REPLICATION LOGICAL": commands.StartLogicalReplication("s", LSN),
    "CREATE_REPLICATION_SLOT": commands.CreateReplicationSlot("s"),
    "DROP_REPLICATION_SLOT": commands.DropReplicationSlot("s"),
    "READ_REPLICATION_SLOT": commands.ReadReplicationSlot("s"),
    "ALTER_REPLICATION_SLOT": commands.AlterReplicationSlot("s"),
    "BASE_BACKUP": commands.BaseBackup(),
    "UPLOAD_MANIFEST": commands.UploadManifest(),
    "SELECT 1": monitoring_query.SelectOne(),
    "SELECT setting": monitoring_query.SelectSetting("wal_segment_size"),
    "SELECT slot": monitoring_query.SelectSlot("s"),
    "SELECT pg_has_role": monitoring_query.SelectMayMonitor(),
    "SET application_name": monitoring_query.SetApplicationName("a"),
}


def test_every_command_is_in_the_table() -> None:
    assert set(COMMANDS) == set(EXPECTED)
    types = set(get_args(Command)) - {OptionCommand}
    assert {type(command) for command in COMMANDS.values()} == types | {OptionCommand}
    assert set(ROLES) == types | OPTION_COMMANDS


def check(user: str, *roles: Role, command: Command) -> None:
    """Checks the role as a session does."""
    check_role(user, frozenset(roles), roles_for(command), command_name(command))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("role", Role)
def test_each_role_may_run_its_commands(name: str, role: Role) -> None:
    command = COMMANDS[name]
    allowed = role is Role.ADMIN or role.value in EXPECTED[name].split()
    assert (role in roles_for(command)) == allowed
    if allowed:
        check("u", role, command=command)
        return
    with pytest.raises(PermissionDenied) as caught:
        check("u", role, command=command)
    assert caught.value.sqlstate == "42501"
    word = name.partition(" ")[0]
    said, _, roles = str(caught.value).partition(" needs the role ")
    assert said.removesuffix(" LOGICAL") == f'permission denied for user "u": {word}'
    assert roles
    assert caught.value.hint


@pytest.mark.parametrize("name", COMMANDS)
def test_without_a_role_nothing_is_allowed(name: str) -> None:
    with pytest.raises(PermissionDenied):
        check("removed", command=COMMANDS[name])


def test_one_of_several_roles_is_enough() -> None:
    check("u", Role.MONITOR, Role.PROPOSER, command=COMMANDS["START_WAL_PUSH"])


def test_only_the_admin_may_run_a_command_that_is_not_in_the_table() -> None:
    assert roles_for(OptionCommand("TO_COME")) == {Role.ADMIN}
