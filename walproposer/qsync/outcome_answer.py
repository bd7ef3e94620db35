"""What became of a transaction: the answer to OUTCOME, from all that can be known. Pure.

    it is in the limbo                           pending
    its end was seen by the coordinator          that
    its timeline was left at or below its begin  rolled back: the log that won does not have it
    its xid is in progress                       pending
    its xid is aborted, or was not given yet     rolled back
    its xid is committed, and its own            committed
    its xid is committed, and somebody else's    rolled back
    anything else                                unknown

Laws (docs/qsync.md): "rolled back" is told only when no later primary can have it, and there is one
answer for one gid. So nothing is told before the quorum has what it rests on, pending until then:
the first byte of the primary's timeline (`Led.decides_lsn`), the end that was seen, all that was
flushed when the xid was looked at.

An xid is used again after a failover that cut the log, after a crash that lost WAL which was not
flushed, and on another server that was promoted from the same log. So "committed" may be said of a
stranger. It is believed only of a PREPARE that is in this log: the coordinator has known it; or it
was flushed by this very server, as its client knows; or it was found there (`prepare_search.py`).
For the rest it does not matter whose xid it is: if it is a stranger's, the PREPARE is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pgwal.errors import TimelineHistoryError
from pgwal.lsn import Lsn
from qsync.gid import Gid
from walproposer.qsync.limbo_events import Led
from walproposer.qsync.limbo_table import Departure, Fate


class XidStatus(Enum):
    """pg_xact_status() of the xid."""

    IN_PROGRESS = "in progress"  # of a prepared one, too
    COMMITTED = "committed"
    ABORTED = "aborted"  # or lost in a crash
    TOO_OLD = "too old"  # NULL: what was known of it has been removed
    FUTURE = "in the future"  # an error, 22023: it was not given to anybody yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Gathered from the primary of the incarnation that leads: first `is_prepared` (the gid is in
    pg_prepared_xacts), then the status, then the flush position, then the rest, of the coordinator.

    `lsn`: an upper bound of the end of PREPARE, if its client got that far, else 0. `is_in_log`:
    the log has its PREPARE; False: it was looked for as far as it may be; None: it was not.
    """

    gid: Gid
    lsn: int
    led: Led
    departure: Departure | None
    is_in_log: bool | None
    is_prepared: bool
    xid_status: XidStatus
    flushed_lsn: int
    commit_lsn: int


@dataclass(frozen=True, slots=True)
class OutcomeAnswer:
    """`lsn`: what the quorum has, or must have for a final answer; 0 where there will be none."""

    fate: Fate
    lsn: int = 0


def outcome_of(evidence: Evidence) -> OutcomeAnswer:
    """Raises nothing."""
    if evidence.is_prepared or evidence.commit_lsn < evidence.led.decides_lsn:
        return OutcomeAnswer(Fate.PENDING)
    departure = evidence.departure
    if departure is not None and departure.fate is not Fate.UNKNOWN:
        assert departure.end_lsn is not None
        return _once_covered(departure.fate, departure.end_lsn, evidence)
    gid, history = evidence.gid, evidence.led.history
    if gid.tli > history.tli:
        return OutcomeAnswer(Fate.UNKNOWN)  # there is a newer primary than this one
    try:
        left_lsn = history.switch_lsn_of(gid.tli)
    except TimelineHistoryError:
        left_lsn = Lsn(0)  # the log never was on it
        if not history.entries:
            return OutcomeAnswer(Fate.UNKNOWN)  # nothing is known of the ancestors
    if left_lsn is not None and gid.begin_lsn >= left_lsn:
        return OutcomeAnswer(Fate.ROLLED_BACK, evidence.led.decides_lsn)
    return _by_xid(evidence)


def _by_xid(evidence: Evidence) -> OutcomeAnswer:
    status, flushed_lsn = evidence.xid_status, evidence.flushed_lsn
    if status is XidStatus.IN_PROGRESS:
        return OutcomeAnswer(Fate.PENDING)
    if status in (XidStatus.ABORTED, XidStatus.FUTURE):
        return _once_covered(Fate.ROLLED_BACK, flushed_lsn, evidence)
    is_in_log = evidence.is_in_log
    if is_in_log is None and is_of_server(evidence.gid, evidence.lsn, evidence.led.server):
        is_in_log = evidence.lsn <= flushed_lsn or None
    if status is not XidStatus.COMMITTED or is_in_log is None:
        return OutcomeAnswer(Fate.UNKNOWN)
    fate = Fate.COMMITTED if is_in_log else Fate.ROLLED_BACK
    return _once_covered(fate, flushed_lsn, evidence)


def is_of_server(gid: Gid, lsn: int, server: tuple[int, int]) -> bool:
    """Whether its client knows that it was flushed by that server (`Led.server`)."""
    return lsn > gid.begin_lsn and (gid.tli, gid.server_start_us) == server


def _once_covered(fate: Fate, lsn: int, evidence: Evidence) -> OutcomeAnswer:
    """What would not be so in a log that ends below `lsn`."""
    return OutcomeAnswer(fate if evidence.commit_lsn >= lsn else Fate.PENDING, lsn)
