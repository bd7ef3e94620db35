"""What a primary says of the log it belongs to, read before anything is created or taken over.

Two guards keep a second log from being created for a primary whose commits an older one
acknowledges: its marker (`primary/log_marker.py`), and where there is none (it was promoted by
hand, cloned or restored, or attached by an older release), that its commits wait for a proposer
already.

A primary with neither may still have been a standby in a log, promoted by hand. Nothing at it tells
that from a server that failed over before it had any log, so it gets a new one, with a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import psycopg
import structlog

from consensus.ids import TimelineId
from consensus.messages import ServerFacts
from walproposer.connection import refusing
from walproposer.errors import Refusal, Unreachable
from walproposer.primary.log_marker import (
    UNKNOWN_LOG,
    UNKNOWN_LOG_HINT,
    check_log,
    mark_log,
    new_log_problem,
    read_markers,
)
from walproposer.primary.primary_address import PrimaryAddress
from walproposer.primary.server_facts import read_server_facts
from walproposer.primary.standby_names import names_us
from walproposer.timelines.survey import Member
from walproposer.timelines.timeline_creation import FoundTimeline

log = structlog.get_logger()

_SLOTS = (
    "SELECT current_setting('max_replication_slots')::int, count(*)::int,"
    " coalesce(bool_or(slot_name = %s), false), current_setting('synchronous_standby_names')"
    " FROM pg_replication_slots"
)


@dataclass(frozen=True, slots=True)
class PrimaryLog:
    """`slots_missing`: how many replication slots the primary lacks for one of our slots and the
    marker. `commits_wait`: synchronous_standby_names names us."""

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
        """Whether this primary may be attached to `found`, or to a new timeline (None), `wanted` if
        that was named, on these members. Raises Refusal; Unreachable when a member that is silent
        may have its log."""
        if found is not None:
            check_log(self.markers, found.timeline)
        else:
            self._check_new(members, wanted)
        if self.slots_missing > 0:
            raise Refusal(
                f"the primary has {self.slots_max} replication slots, and {self.slots_missing} too "
                "few of them are free: one holds the WAL, one has the name of the log",
                hint="Drop one that is not used, or ALTER SYSTEM SET max_replication_slots = "
                f"{self.slots_max + self.slots_missing}; then restart the primary.",
            )

    def _check_new(self, members: Sequence[Member], wanted: TimelineId | None) -> None:
        silent = [member.error for member in members if member.error is not None]
        present = [timeline for member in members for timeline in member.timelines]
        problem, hint = new_log_problem(self.markers, wanted, present)
        if problem and silent:
            raise Unreachable(f"{problem}; {silent[0]}", hint="Start them, or correct the address.")
        if problem:
            raise Refusal(problem, hint=hint)
        if self.commits_wait and not silent:
            raise Refusal(UNKNOWN_LOG, hint=UNKNOWN_LOG_HINT)


def read_primary_log(
    address: PrimaryAddress, questions: psycopg.Connection | None = None
) -> PrimaryLog:
    """By a connection for `questions`, if there is one already. Raises Refusal for what cannot be a
    primary of ours, Unreachable."""
    with address.connected(questions) as connection, refusing("could not inspect the primary"):
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
    """A new log was created for a primary on this Postgres timeline."""
    if tli > 1:
        log.warning(
            f"a new log begins on Postgres timeline {tli}: the primary was promoted or restored "
            "once, and if it was a standby of a primary with a quorum, this log lacks the commits "
            "which that quorum has and the primary does not",
            remedy="In that case stop this proposer, and run sk promote for a standby with the "
            "safekeepers of that log.",
        )


def mark_primary(address: PrimaryAddress, timeline: TimelineId) -> None:
    """From now on it belongs to `timeline`. Raises Refusal, Unreachable."""
    with closing(address.connect()) as connection:
        mark_log(connection, timeline)
