"""The outcome of a transaction: the answer to OUTCOME, from all available information. Pure.

    it is in the limbo                             pending
    the coordinator has seen its end               that outcome
    its timeline ended at or below its begin       rolled back: the elected log does not have it
    its xid is in progress                         pending
    its xid is aborted, or not assigned yet        rolled back
    its xid is committed, and its own              committed
    its xid is committed, and of another use       rolled back
    anything else                                  unknown

Laws (docs/qsync.md): "rolled back" is reported only if no later primary can have the transaction,
and the answer for a gid is always the same. So the answer is "pending" until the quorum has what
the outcome depends on: the first byte of the primary's timeline (`Led.decides_lsn`), the end that
was seen, and everything that was flushed when the xid was read.

An xid is used again after a failover that cut the log, after a crash that lost unflushed WAL, and
on another server that was promoted from the same log. So "committed" may refer to another
transaction. It counts only for a PREPARE that is in this log: the coordinator has known it; or this
very server flushed it, as its client knows; or a search found it (`prepare_search.py`). For the
other states the owner of the xid does not matter: if it is another transaction, the PREPARE is
lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.pgwal.errors import TimelineHistoryError
from quorum_wal.pgwal.lsn import Lsn
from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.qsync.limbo_events import Led
from quorum_wal.walproposer.qsync.limbo_table import Departure, Fate


class XidStatus(Enum):
    """The result of pg_xact_status() for the xid."""

    IN_PROGRESS = "in progress"  # also if it is prepared
    COMMITTED = "committed"
    ABORTED = "aborted"  # or lost in a crash
    TOO_OLD = "too old"  # NULL: its status has been removed
    FUTURE = "in the future"  # an error, 22023: the xid is not assigned yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Collected from the primary of the incarnation that leads: first `is_prepared` (the gid is in
    pg_prepared_xacts), then the status, then the flush position; then the rest, from the
    coordinator.

    `lsn`: an upper bound of the end of PREPARE, if its client knows one, else 0. `is_in_log`: the
    log has its PREPARE; False: a complete search did not find it; None: there was no search.
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
    """`lsn`: the position that the quorum has, or must have for a final answer; 0 if there will be
    none."""

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
        left_lsn = Lsn(0)  # the log was never on it
        if not history.entries:
            return OutcomeAnswer(Fate.UNKNOWN)  # the ancestors are unknown
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
    """Whether its client knows that this server (`Led.server`) flushed it."""
    return lsn > gid.begin_lsn and (gid.tli, gid.server_start_us) == server


def _once_covered(fate: Fate, lsn: int, evidence: Evidence) -> OutcomeAnswer:
    """An outcome that a log ending below `lsn` would not have: pending until the quorum has
    that."""
    return OutcomeAnswer(fate if evidence.commit_lsn >= lsn else Fate.PENDING, lsn)
