"""The log that a primary belongs to, read before anything is created or taken over.

Two checks prevent a second log for a primary whose commits an older one acknowledges: its marker
(`primary/log_marker.py`), and without a marker (it was promoted by hand, cloned or restored, or
attached by an older release), that its commits already wait for a proposer.

A primary with neither may still have been a standby in a log, promoted by hand. Nothing on it
distinguishes that from a server that failed over before it had a log. So it gets a new log, with a
warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg
import structlog

from quorum_wal.consensus.ids import TimelineId
from quorum_wal.consensus.messages import ServerFacts
from quorum_wal.walproposer.connection import converting_errors
from quorum_wal.walproposer.errors import Refusal, Unreachable
from quorum_wal.walproposer.primary.log_marker import (
    UNKNOWN_LOG,
    UNKNOWN_LOG_HINT,
    check_log,
    mark_log,
    new_log_problem,
    read_markers,
)
from quorum_wal.walproposer.primary.primary_address import PrimaryAddress
from quorum_wal.walproposer.primary.server_facts import read_server_facts
from quorum_wal.walproposer.primary.standby_names import names_us
from quorum_wal.walproposer.timelines.survey import Member
from quorum_wal.walproposer.timelines.timeline_creation import FoundTimeline

log = structlog.get_logger()

_SLOTS = (
    "SELECT current_setting('max_replication_slots')::int, count(*)::int,"
    " coalesce(bool_or(slot_name = %s), false), current_setting('synchronous_standby_names')"
    " FROM pg_replication_slots"
)


@dataclass(frozen=True, slots=True)
class PrimaryLog:
    """`slots_missing`: how many replication slots the primary lacks for our slot and the marker.
    `commits_wait`: synchronous_standby_names names us."""

    server: ServerFacts
    markers: tuple[str, ...]
    slots_missing: int
    slots_max: int
    commits_wait: bool

    def check(
        self,
        found: FoundTimeline | None,
        members: Sequence[Member],
        wanted: TimelineId | None = None,
    ) -> None:
        """Check whether this primary may be attached to `found`, or, if None, to a new timeline on
        these members, `wanted` if that was named. Raises Refusal; Unreachable if a member that does
        not answer may have its log."""
        if found is not None:
            check_log(self.markers, found.timeline)
        else:
            self._check_new(members, wanted)
        if self.slots_missing > 0:
            raise Refusal(
                f"the primary has {self.slots_max} replication slots, and {self.slots_missing} too "
                "few of them are free: one holds the WAL, one has the name of the log",
                hint="Drop an unused one, or ALTER SYSTEM SET max_replication_slots = "
                f"{self.slots_max + self.slots_missing}; then restart the primary.",
            )

    def _check_new(self, members: Sequence[Member], wanted: TimelineId | None) -> None:
        silent = [member.error for member in members if member.error is not None]
        present = [timeline for member in members for timeline in member.timelines]
        unasked = [(str(error), error.hint) for error in silent]
        problem, hint = new_log_problem(self.markers, wanted, present, unasked)
        if problem:
            kind = Unreachable if silent else Refusal
            raise kind(problem, hint=hint)
        if self.commits_wait and not silent:
            raise Refusal(UNKNOWN_LOG, hint=UNKNOWN_LOG_HINT)


def read_primary_log(
    address: PrimaryAddress, questions: psycopg.Connection | None = None
) -> PrimaryLog:
    """`questions`: an open connection to use. Raises Refusal for a server that cannot be one of our
    primaries, Unreachable."""
    with (
        address.connected(questions) as connection,
        converting_errors("could not inspect the primary"),
    ):
        server = read_server_facts(connection)
        markers = read_markers(connection)
        row = connection.execute(_SLOTS, (address.slot,)).fetchone()
    assert row is not None
    slots_max, taken, has_slot, names = row
    wanted = (not has_slot) + (not markers)
    return PrimaryLog(
        server=server,
        markers=markers,
        slots_missing=taken + wanted - slots_max,
        slots_max=slots_max,
        commits_wait=names_us(names, address.application_name),
    )


def warn_of_promotion(tli: int) -> None:
    """Warn if a new log was created for a primary on this Postgres timeline."""
    if tli > 1:
        log.warning(
            f"a new log begins on Postgres timeline {tli}: the primary was once promoted or "
            "restored. If it was a standby of a primary with a quorum, this log lacks the commits "
            "that this quorum has and the primary does not",
            remedy="In that case stop this proposer, and run sk promote for a standby with the "
            "safekeepers of that log.",
        )


def mark_primary(address: PrimaryAddress, timeline: TimelineId) -> None:
    """From now on the primary belongs to `timeline`. Raises Refusal, Unreachable."""
    with closing(address.connect()) as connection:
        mark_log(connection, timeline)
