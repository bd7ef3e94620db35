"""Records on a primary which log it belongs to: a replication slot with the log's name.

    sk_log_<timeline_id, 32 hex digits>                        of the tenant of zeros
    sk_log_<timeline_id>_<tenant_id, its first 16 digits>      of another tenant

The slot is physical, never active, and reserves no WAL (restart_lsn is null), so it holds nothing
back. It is a slot because a role with REPLICATION can create one, in every version of Postgres, and
because it survives a restart. Base backups and standbys do not have it, so a promotion writes it
again.

Law: commits are acknowledged by one log. A primary that belongs to a log is never attached to
another log, and no second log is created for it, until the marker of the first is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

import psycopg

from quorum_wal.consensus.ids import ID_BYTES, TimelineId
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Refusal

PREFIX = "sk_log_"
#: NAMEDATALEN allows 63 characters.
TENANT_DIGITS = 16

LEAVE_HINT = (
    "Give the safekeepers of that log. To leave it for good, including commits that only they "
    "have: stop its proposer, run sk detach --drop-slot, then sk attach."
)

#: For a safekeeper that gave no reason.
NOT_STARTED_HINT = "Start it, or correct its address."

#: For a primary without a marker whose commits wait for a proposer of ours.
UNKNOWN_LOG = (
    "commits of the primary wait for a proposer, but these safekeepers have no timeline of it: "
    "another quorum may have acknowledged commits that they lack"
)
UNKNOWN_LOG_HINT = (
    "Give the safekeepers of its log. To begin a new log here: sk timeline create --primary, "
    "then sk attach."
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
    """The names of the markers. Raises psycopg.Error."""
    return tuple(name for (name,) in connection.execute(_MARKERS, (PREFIX,)).fetchall())


def log_problem(markers: Iterable[str], timeline: TimelineId) -> str:
    """Why a primary with these markers must not be attached to `timeline`; "" if it may."""
    others = [name for name in markers if name != marker_name(timeline)]
    return f"{_belongs(others[0])}, not to {timeline}" if others else ""


def new_log_problem(
    markers: Sequence[str],
    wanted: TimelineId | None,
    present: Iterable[TimelineId],
    unasked: Sequence[tuple[str, str]] = (),
) -> tuple[str, str]:
    """Why it must not be attached to a new timeline, and the hint; two "" if it may. `wanted` is
    the named timeline, `present` are those that the safekeepers have. `unasked` has the error and
    the hint of each safekeeper that did not answer: it may have the log, so the hint never says how
    to leave that."""
    if not markers:
        return "", ""
    is_misnamed = wanted is not None and markers[0] != marker_name(wanted)
    if is_misnamed and markers[0] in map(marker_name, present):
        text = "which these safekeepers have: --timeline names another one"
        return f"{_belongs(markers[0])}, {text}", "Leave out --timeline."
    if unasked:
        error, hint = unasked[0]
        text = f"not all safekeepers could be asked whether they have it: {error}"
        return f"{_belongs(markers[0])}, and {text}", hint or NOT_STARTED_HINT
    return f"{_belongs(markers[0])}, which these safekeepers do not have", LEAVE_HINT


def _belongs(marker: str) -> str:
    return f"the primary belongs to log {marker.removeprefix(PREFIX)}"


def check_log(markers: Iterable[str], timeline: TimelineId) -> None:
    """Raises Refusal."""
    problem = log_problem(markers, timeline)
    if problem:
        raise Refusal(problem, hint=LEAVE_HINT)


def mark_log(connection: psycopg.Connection, timeline: TimelineId) -> None:
    """From now on the primary belongs to `timeline`. Raises Refusal, also if another process marks
    it for another log at the same time; Unreachable."""
    name = marker_name(timeline)
    with converting_errors("could not write the name of the log to the primary"):
        markers = read_markers(connection)
        check_log(markers, timeline)
        if name in markers:
            return
        with suppress(psycopg.errors.DuplicateObject):  # another proposer of this log
            connection.execute("SELECT pg_create_physical_replication_slot(%s, false)", (name,))
        try:
            check_log(read_markers(connection), timeline)
        except Refusal:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
            raise


def forget_log(connection: psycopg.Connection) -> tuple[str, ...]:
    """Remove the markers: the primary belongs to no log now. Returns their names. Raises
    psycopg.Error."""
    markers = read_markers(connection)
    for name in markers:
        connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    return markers
