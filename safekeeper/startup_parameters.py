"""What a client may set when it connects, by name: what a session of Postgres 13 to 18 may set, and
what is ours. Pure.

The settings of Postgres mean nothing here and change nothing; they are taken because clients send
them to every server: libpq from its environment (PGTZ, PGDATESTYLE, PGOPTIONS), pgjdbc, barman and
others by themselves. Law: a name that Postgres does not know is refused as Postgres refuses it, so
that a misspelt `timeline_id` is not taken for none.
Source: Postgres `postinit.c`, `guc.c`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from consensus.errors import ConsensusError
from consensus.ids import parse_id
from pgwire.errors import INVALID_PARAMETER_VALUE, ConnectionRefused
from pgwire.startup import parse_options
from safekeeper.control_state import ControlState
from safekeeper.refusals import departure
from safekeeper.session_settings import ENCODINGS, SESSION_SETTINGS

UNDEFINED_OBJECT = "42704"
CANNOT_CONNECT_NOW = "57P03"

#: Which timeline is meant, and where the status page of the proposer is that connects.
IDS = ("tenant_id", "timeline_id")
OWN = frozenset({*IDS, "proposer_http"})
#: What clients of ours say that they are (`pgclient/connection.py`).
OWN_CLIENT = "sk.client"

#: Of the packet itself.
_OF_PACKET = frozenset({"user", "database", "options", "replication"})
#: Of an extension, or of nobody: it need not be known.
_QUALIFIED = re.compile(r"[^\W\d][\w$]*(\.[^\W\d][\w$]*)+")


def check_startup_parameters(parameters: Mapping[str, str]) -> None:
    """Names in lower case. Raises ConnectionRefused (42704, 22023)."""
    names = [name for name in parameters if name not in _OF_PACKET]
    names += [name for name in parse_options(parameters.get("options", "")) if name in _OF_PACKET]
    for name in names:
        if name not in SESSION_SETTINGS and name not in OWN and not _QUALIFIED.fullmatch(name):
            raise ConnectionRefused(
                f'unrecognized configuration parameter "{name}"',
                sqlstate=UNDEFINED_OBJECT,
                hint="A safekeeper's own are timeline_id and tenant_id; besides, those that a "
                "session of Postgres can set are taken and mean nothing.",
            )
    encoding = parameters.get("client_encoding", "UTF8")
    if re.sub("[^0-9a-z]", "", encoding.lower()) not in ENCODINGS:
        raise _invalid_value("client_encoding", encoding)
    for name in IDS:
        _check_id(name, parameters.get(name))


def check_may_stream(control: ControlState, parameters: Mapping[str, str]) -> None:
    """One that has left its timeline lets in those that know how to go on from it. A stock client
    does not: libpq goes on to the next host of its conninfo when it is refused by this SQLSTATE,
    before it is authenticated; a WAL receiver that was let in would come back for ever.

    Raises ConnectionRefused (57P03)."""
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
