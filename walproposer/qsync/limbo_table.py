"""The known prepared transactions of qsync, from the stream and from readings. Pure.

    PREPARE ends            low_lsn < prepare_end_lsn <= high_lsn
    known from a reading    low_lsn = begin_lsn of the gid   high_lsn = a flush position read later
    known from the stream   low_lsn = prepare_end_lsn - 1    high_lsn = prepare_end_lsn (exact)

Laws. An interval is never narrower than the knowledge: to commit a transaction that the quorum
lacks would show data that may be lost. Gid, xid and time of PREPARE together identify a
transaction, because a gid can be used again. Messages and readings may be late or repeated; they
never bring back a transaction that has left. The table has only gids of qsync.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from quorum_wal.pgwire.logical import CommitPrepared, Prepare, RollbackPrepared
from quorum_wal.qsync.gid import Gid, GidError
from quorum_wal.walproposer.qsync.limbo_events import LimboEntry, LimboRead

# Number of departed transactions to remember, so that OUTCOME can answer without a look at their
# xid.
DEPARTURES_MAX = 10_000


class Fate(Enum):
    """The outcome of a transaction. The value is the word on the wire."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    PENDING = "pending"  # neither of them yet
    UNKNOWN = "unknown"  # it is no longer in the limbo, and its outcome cannot be determined


@dataclass(slots=True)
class Entry:
    """A prepared transaction. `xid` has 32 bits. `was_read`: a reading has listed it, so Postgres
    accepts COMMIT PREPARED for it. A transaction that only the stream has reported may not be that
    far."""

    gid: Gid
    database: str
    owner: str
    xid: int
    prepared_at_us: int
    low_lsn: int
    high_lsn: int
    was_read: bool
    absent_since_ms: int | None = None

    @property
    def is_exact(self) -> bool:
        return self.low_lsn + 1 == self.high_lsn


@dataclass(frozen=True, slots=True)
class Departure:
    """A transaction that has left the limbo. Its last record ends at or below `end_lsn`, None if
    unknown. `prepared_at_us` is None if only its end was seen."""

    fate: Fate
    xid: int
    prepared_at_us: int | None
    end_lsn: int | None

    def is_of(self, xid: int, prepared_at_us: int) -> bool:
        return self.xid == xid and self.prepared_at_us in (None, prepared_at_us)


class LimboTable:
    """Other modules read `entries` and `departures`, by the text of the gid."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.departures: dict[str, Departure] = {}
        #: Gids whose PREPARE a quorum was known to have: it is in every later log.
        self._in_log: dict[str, None] = {}
        #: The number of gids of other programs in the last reading.
        self.foreign_count = 0

    def in_order(self) -> list[Entry]:
        """In the order of their PREPAREs in the log. If some end is not exact, by the time of
        PREPARE, which gives the same order for two transactions of which one began after the other
        had returned."""
        entries = list(self.entries.values())
        if all(entry.is_exact for entry in entries):
            return sorted(entries, key=lambda entry: entry.high_lsn)
        return sorted(entries, key=lambda entry: (entry.prepared_at_us, str(entry.gid)))

    def forget(self, commit_lsn: int) -> None:
        """The primary may be another one now. Keep only what the quorum has."""
        for gid, entry in self.entries.items():
            if entry.high_lsn <= commit_lsn:
                self._in_log[gid] = None
        while len(self._in_log) > DEPARTURES_MAX:
            del self._in_log[next(iter(self._in_log))]
        self.entries.clear()
        self.departures = {
            gid: departure
            for gid, departure in self.departures.items()
            if departure.end_lsn is not None and departure.end_lsn <= commit_lsn
        }

    def is_in_log(self, gid: str) -> bool:
        """Whether its PREPARE is certainly in the log that the primary writes."""
        return gid in self.entries or gid in self.departures or gid in self._in_log

    # ---- the stream

    def prepared(self, database: str, message: Prepare) -> None:
        """A PREPARE, perhaps repeated, perhaps of a transaction that has left meanwhile."""
        try:
            gid = Gid.parse(message.gid)
        except GidError:
            return
        if self._has_left(message):
            return
        known = self.entries.get(message.gid)
        is_same = known is not None and _is_of(known, message.xid, message.prepare_time_us)
        # It is of an earlier use of the gid, or that is unknown: keep the wider interval.
        if known is not None and not is_same and message.end_lsn <= known.high_lsn:
            return
        self.entries[message.gid] = Entry(
            gid=gid,
            database=database,
            owner=known.owner if known is not None and is_same else "",
            xid=message.xid,
            prepared_at_us=message.prepare_time_us,
            low_lsn=message.end_lsn - 1,
            high_lsn=message.end_lsn,
            was_read=known is not None and is_same and known.was_read,
        )

    def _has_left(self, message: Prepare) -> bool:
        departure = self.departures.get(message.gid)
        if departure is None:
            return False
        if departure.is_of(message.xid, message.prepare_time_us):
            return True
        return departure.end_lsn is not None and message.end_lsn <= departure.end_lsn

    def committed(self, message: CommitPrepared) -> None:
        """A COMMIT PREPARED, perhaps of a transaction that was never seen, or of an earlier use of
        the gid."""
        if not Gid.is_ours(message.gid):
            return
        known = self.entries.get(message.gid)
        is_same = known is not None and known.xid == message.xid and known.low_lsn < message.end_lsn
        at_us = known.prepared_at_us if known is not None and is_same else None
        departure = Departure(Fate.COMMITTED, message.xid, at_us, message.end_lsn)
        self._depart(message.gid, departure, is_same)

    def rolled_back(self, message: RollbackPrepared) -> None:
        """Like `committed`; the message itself identifies the PREPARE."""
        if not Gid.is_ours(message.gid):
            return
        known = self.entries.get(message.gid)
        is_same = known is not None and _is_of(known, message.xid, message.prepare_time_us)
        if known is not None and known.is_exact:
            is_same = is_same and known.high_lsn == message.prepare_end_lsn
        departure = Departure(
            Fate.ROLLED_BACK, message.xid, message.prepare_time_us, message.rollback_end_lsn
        )
        self._depart(message.gid, departure, is_same)

    # ---- readings

    def read(self, reading: LimboRead, now_ms: int, patience_ms: int) -> None:
        """All rows of a reading, as of a moment before `flushed_after_lsn`.

        A PREPARE that only the stream has reported may be flushed and not be listed for a moment.
        It is removed only after `patience_ms`.
        """
        self.foreign_count = sum(not Gid.is_ours(row.gid) for row in reading.entries)
        listed = {row.gid: row for row in reading.entries if Gid.is_ours(row.gid)}
        for gid, row in listed.items():
            self._listed(gid, row, reading.flushed_after_lsn)
        for gid, entry in list(self.entries.items()):
            if gid in listed:
                entry.absent_since_ms = None
            elif entry.was_read:
                left = Departure(Fate.UNKNOWN, entry.xid, entry.prepared_at_us, None)
                self._depart(gid, left, is_known=True)
            elif entry.high_lsn <= reading.flushed_before_lsn:
                if entry.absent_since_ms is None:
                    entry.absent_since_ms = now_ms
                elif now_ms - entry.absent_since_ms >= patience_ms:
                    del self.entries[gid]

    def _listed(self, gid: str, row: LimboEntry, flushed_after_lsn: int) -> None:
        departure = self.departures.get(gid)
        if departure is not None and departure.is_of(row.xid, row.prepared_at_us):
            return  # the reading is older than its end
        known = self.entries.get(gid)
        if known is not None and _is_of(known, row.xid, row.prepared_at_us):
            known.was_read, known.owner = True, row.owner
            return
        if known is not None and flushed_after_lsn <= known.low_lsn:
            return  # the reading is older than the message of the stream
        parsed = Gid.parse(gid)
        self.entries[gid] = Entry(
            gid=parsed,
            database=row.database,
            owner=row.owner,
            xid=row.xid,
            prepared_at_us=row.prepared_at_us,
            # A gid with a begin above its end is wrong.
            low_lsn=parsed.begin_lsn if parsed.begin_lsn < flushed_after_lsn else 0,
            high_lsn=flushed_after_lsn,
            was_read=True,
        )

    # ---- the coordinator's own commands

    def finished(self, gid: str, left: Departure) -> None:
        """COMMIT PREPARED or ROLLBACK PREPARED has returned."""
        known = self.entries.get(gid)
        is_known = known is not None and left.is_of(known.xid, known.prepared_at_us)
        self._depart(gid, left, is_known)

    def _depart(self, gid: str, departure: Departure, is_known: bool) -> None:
        """`is_known`: the table has this use of the gid."""
        if is_known:
            self.entries.pop(gid, None)
        before = self.departures.pop(gid, None)
        self.departures[gid] = departure if before is None else _newer(before, departure)
        if len(self.departures) > DEPARTURES_MAX:
            del self.departures[next(iter(self.departures))]


def _is_of(entry: Entry, xid: int, prepared_at_us: int) -> bool:
    return entry.xid == xid and entry.prepared_at_us == prepared_at_us


def _newer(before: Departure, after: Departure) -> Departure:
    """Of two uses of a gid the later one; of one use the union of the information."""
    ends = [lsn for lsn in (before.end_lsn, after.end_lsn) if lsn is not None]
    if before.xid != after.xid:
        return before if len(ends) == 2 and ends[0] > ends[1] else after
    fate = before.fate if after.fate is Fate.UNKNOWN else after.fate
    times = [at_us for at_us in (after.prepared_at_us, before.prepared_at_us) if at_us is not None]
    return Departure(fate, after.xid, next(iter(times), None), min(ends, default=None))
