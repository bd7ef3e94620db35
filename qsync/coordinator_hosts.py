"""The addresses of coordinators: one libpq connection string for each host of the user's value.
Pure.

proposer:5455                                one
a:5455,b:5455                                several: one leads, the others refuse
host=a,b port=5455 user=app passfile=...     libpq's keywords, or its URI
"""

from __future__ import annotations

import re
from itertools import cycle, islice
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from quorum_wal.qsync.errors import UsageError

CONNECT_TIMEOUT_SECONDS = 5
# The kernel closes a connection whose data is not acknowledged for this long, so that the client
# notices an unreachable host.
TCP_USER_TIMEOUT_MS = 5_000
_REQUIRE_AUTH_SINCE = 160000

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\s=/:,\[\]]+):(?P<port>[0-9]{1,5})")
_PLACES = ("host", "hostaddr", "port")


def hosts_of(conninfo: str) -> list[str]:
    """Returns at least one. Raises UsageError."""
    try:
        settings = _addresses(conninfo) or conninfo_to_dict(conninfo)
    except (psycopg.Error, UnicodeEncodeError) as error:
        raise UsageError(f"invalid coordinator {conninfo!r}: {error}".strip()) from error
    lists = {name: str(settings[name]).split(",") for name in _PLACES if settings.get(name)}
    if "host" not in lists and "hostaddr" not in lists:
        raise UsageError(
            f"invalid coordinator {conninfo!r}: expected HOST:PORT, or a connection string"
            " with a host"
        )
    count = max(map(len, lists.values()))
    places = {name: list(islice(cycle(values), count)) for name, values in lists.items()}
    common = {**_defaults(), **settings}
    return [
        make_conninfo(**{**common, **{name: values[at] for name, values in places.items()}})
        for at in range(count)
    ]


def _addresses(text: str) -> dict[str, Any] | None:
    """The settings for `a:5455,b:5455`; None if `text` does not have that form."""
    found = [_ADDRESS.fullmatch(address.strip()) for address in text.split(",")]
    hosts = [match["host"].strip("[]") for match in found if match is not None]
    if len(hosts) != len(found):
        return None
    return {
        "host": ",".join(hosts),
        "port": ",".join(match["port"] for match in found if match is not None),
    }


def _defaults() -> dict[str, Any]:
    """A coordinator requests SCRAM, never a plain-text password."""
    found: dict[str, Any] = {
        "application_name": "qsync",
        "gssencmode": "disable",
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "tcp_user_timeout": TCP_USER_TIMEOUT_MS,
    }
    if pq.version() >= _REQUIRE_AUTH_SINCE:
        found["require_auth"] = "none,scram-sha-256"
    return found
