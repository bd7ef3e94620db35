"""The parameters that a client may set when it connects, by name: the session settings of Postgres
13 to 18, and our own. Pure.

A safekeeper accepts the settings of Postgres and ignores them, because clients send them to every
server: libpq from its environment (PGTZ, PGDATESTYLE, PGOPTIONS), pgjdbc, barman and others without
being asked. Law: a name that Postgres does not know is refused as Postgres refuses it, so that a
misspelt `timeline_id` is not ignored.
Source: Postgres `postinit.c`, `guc.c`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from quorum_wal.consensus.errors import ConsensusError
from quorum_wal.consensus.ids import parse_id
from quorum_wal.pgwire.errors import INVALID_PARAMETER_VALUE, ConnectionRefused
from quorum_wal.pgwire.startup import parse_options
from quorum_wal.safekeeper.control_state import ControlState
from quorum_wal.safekeeper.refusals import departure
from quorum_wal.safekeeper.session_settings import ENCODINGS, SESSION_SETTINGS

UNDEFINED_OBJECT = "42704"
CANNOT_CONNECT_NOW = "57P03"

#: The ids of the timeline, and the address of the connecting proposer's status page.
IDS = ("tenant_id", "timeline_id")
OWN = frozenset({*IDS, "proposer_http"})
#: A parameter that only our own clients send (`pgclient/connection.py`).
OWN_CLIENT = "sk.client"

#: Fields of the startup packet that are not settings.
_OF_PACKET = frozenset({"user", "database", "options", "replication"})
#: Settings of extensions, also unknown ones.
_QUALIFIED = re.compile(r"[^\W\d][\w$]*(\.[^\W\d][\w$]*)+")


def check_startup_parameters(parameters: Mapping[str, str]) -> None:
    """Checks names (in lower case) and ids. Raises ConnectionRefused (42704, 22023)."""
    names = [name for name in parameters if name not in _OF_PACKET]
    names += [name for name in parse_options(parameters.get("options", "")) if name in _OF_PACKET]
    for name in names:
        if name not in SESSION_SETTINGS and name not in OWN and not _QUALIFIED.fullmatch(name):
            raise ConnectionRefused(
                f'unrecognized configuration parameter "{name}"',
                sqlstate=UNDEFINED_OBJECT,
                hint="A safekeeper's own parameters are timeline_id and tenant_id. It also accepts "
                "the session settings of Postgres, and ignores them.",
            )
    encoding = parameters.get("client_encoding", "UTF8")
    if re.sub("[^0-9a-z]", "", encoding.lower()) not in ENCODINGS:
        raise _invalid_value("client_encoding", encoding)
    for name in IDS:
        _check_id(name, parameters.get(name))


def check_may_stream(control: ControlState, parameters: Mapping[str, str]) -> None:
    """After the safekeeper has left the timeline, only our own clients may connect: they can find
    the present members. A stock client is refused before authentication with this SQLSTATE, so that
    libpq tries the next host of its conninfo. A WAL receiver that was accepted would reconnect
    here for ever. Raises ConnectionRefused (57P03)."""
    if control.has_left and OWN_CLIENT not in parameters:
        refusal = departure(control)
        raise ConnectionRefused(refusal.message, sqlstate=CANNOT_CONNECT_NOW, hint=refusal.hint)


def _check_id(name: str, value: str | None) -> None:
    if value is None:
        return
    try:
        parse_id(value, name)
    except ConsensusError as error:
        raise _invalid_value(name, value, hint=str(error)) from error


def _invalid_value(name: str, value: str, hint: str | None = None) -> ConnectionRefused:
    return ConnectionRefused(
        f'invalid value for parameter "{name}": "{value}"',
        sqlstate=INVALID_PARAMETER_VALUE,
        hint=hint,
    )
