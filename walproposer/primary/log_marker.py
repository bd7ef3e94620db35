"""Which log a primary belongs to, written at the primary: a replication slot whose name says so.

    sk_log_<timeline_id, 32 hex digits>                        of the tenant of zeros
    sk_log_<timeline_id>_<tenant_id, its first 16 digits>      of another tenant

It is physical, never active, and reserves no WAL (restart_lsn is null), so it holds nothing back. A
slot, because a role with REPLICATION may make one, in every version of Postgres, and because it
outlives a restart. It is in no base backup and on no standby: a promotion writes it again.

Law: commits are acknowledged by one log. A primary that belongs to a log is never attached to
another one, nor is a second one created for it, until it was told to forget the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import psycopg

from consensus.ids import ID_BYTES, TimelineId
from walproposer.connection import refusing
from walproposer.errors import Refusal

PREFIX = "sk_log_"
#: NAMEDATALEN leaves 63 characters.
TENANT_DIGITS = 16

LEAVE_HINT = (
    "Give the safekeepers of that log. To leave it for good, commits that only they have included: "
    "stop its proposer, sk detach --drop-slot, then sk attach."
)

#: Of a primary without a marker whose commits wait for a proposer of ours.
UNKNOWN_LOG = (
    "commits of the primary wait for a proposer, but these safekeepers have no timeline of it: "
    "another quorum may have acknowledged what they lack"
)
UNKNOWN_LOG_HINT = (
    "Give the safekeepers of its log. If it shall have a new log here: "
    "sk timeline create --primary, then sk attach."
)

_MARKERS = (
    "SELECT slot_name::text FROM pg_replication_slots"
    " WHERE slot_type = 'physical' AND starts_with(slot_name::text, %s) ORDER BY 1"
)


def marker_name(timeline: TimelineId) -> str:
    tenant = timeline.tenant_id
    suffix = f"_{tenant.hex()[:TENANT_DIGITS]}" if tenant != bytes(ID_BYTES) else ""
    return f"{PREFIX}{timeline.timeline_id.hex()}{suffix}"


def read_markers(connection: psycopg.Connection) -> tuple[str, ...]:
    """Their names. Raises psycopg.Error."""
    return tuple(name for (name,) in connection.execute(_MARKERS, (PREFIX,)).fetchall())


def log_problem(markers: Iterable[str], timeline: TimelineId) -> str:
    """Why a primary with these markers must not be attached to `timeline`; "" when it may."""
    others = [name for name in markers if name != marker_name(timeline)]
    return f"{_belongs(others[0])}, not to {timeline}" if others else ""


def new_log_problem(
    markers: Sequence[str], wanted: TimelineId | None, present: Iterable[TimelineId]
) -> tuple[str, str]:
    """Why it must not be attached to a new timeline, `wanted` if that was named, on safekeepers
    that have those `present`; and the hint. Two "" when it may."""
    if not markers:
        return "", ""
    is_misnamed = wanted is not None and markers[0] != marker_name(wanted)
    if is_misnamed and markers[0] in map(marker_name, present):
        text = "which these safekeepers have: --timeline names another one"
        return f"{_belongs(markers[0])}, {text}", "Leave out --timeline."
    return f"{_belongs(markers[0])}, which these safekeepers do not have", LEAVE_HINT


def _belongs(marker: str) -> str:
    return f"the primary belongs to log {marker.removeprefix(PREFIX)}"


def check_log(markers: Iterable[str], timeline: TimelineId) -> None:
    """Raises Refusal."""
    problem = log_problem(markers, timeline)
    if problem:
        raise Refusal(problem, hint=LEAVE_HINT)


def mark_log(connection: psycopg.Connection, timeline: TimelineId) -> None:
    """From now on the primary belongs to `timeline`. Raises Refusal, also when somebody else has
    marked it for another log at the same time; Unreachable."""
    name = marker_name(timeline)
    with refusing("could not write the name of the log to the primary"):
        markers = read_markers(connection)
        check_log(markers, timeline)
        if name in markers:
            return
        with suppress(psycopg.errors.DuplicateObject):  # another proposer of the same log
            connection.execute("SELECT pg_create_physical_replication_slot(%s, false)", (name,))
        try:
            check_log(read_markers(connection), timeline)
        except Refusal:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
            raise


def forget_log(connection: psycopg.Connection) -> tuple[str, ...]:
    """The primary belongs to no log any more; returns what was dropped. Raises psycopg.Error."""
    markers = read_markers(connection)
    for name in markers:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return markers
