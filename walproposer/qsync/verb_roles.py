"""Which roles may use which verbs on the coordinator's port. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from quorum_wal.access.roles import Role
from quorum_wal.walproposer.qsync.verbs import (
    Admit,
    AskOutcome,
    Barrier,
    Resolve,
    ShowList,
    ShowStatus,
    Verb,
    WaitLsn,
)

_CLIENT = frozenset({Role.CLIENT, Role.ADMIN})
_MONITOR = frozenset({Role.MONITOR, Role.ADMIN})

ROLES: Mapping[type[Verb], frozenset[Role]] = {
    Admit: _CLIENT,
    WaitLsn: _CLIENT,
    Barrier: _CLIENT,
    AskOutcome: _CLIENT,
    ShowStatus: _MONITOR,
    ShowList: _MONITOR,
    Resolve: frozenset({Role.ADMIN}),
}
