"""The transactions of a simulated Postgres, computed only from its WAL.

Every transaction inserts one row. A record of the log with a meaning has its Op in `Ops`, by the
record's bytes: so a log that was copied, truncated, elected and replayed has the same meaning.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import Enum

from quorum_wal.qsync.gid import Gid
from quorum_wal.walproposer.qsync.outcome_answer import XidStatus

from .log import Log

FIRST_XID = 700
#: Enough to distinguish records: the header with its checksum, and the name.
KEY_BYTES = 64


@dataclass(slots=True)
class Transaction:
    """The history of one transaction: what was done and reported, independent of the cores."""

    number: int
    gid: Gid
    database: str
    #: The end of its PREPARE where it was prepared; 0 before.
    prepare_end_lsn: int = 0
    is_foreign: bool = False

    @property
    def name(self) -> str:
        return f"other-{self.number}" if self.is_foreign else str(self.gid)


class Kind(Enum):
    WRITE = "write"  # of a transaction that has not ended
    COMMIT = "commit"  # a plain one
    PREPARE = "prepare"
    COMMIT_PREPARED = "commit prepared"
    ROLLBACK_PREPARED = "rollback prepared"


@dataclass(slots=True)
class Op:
    """The meaning of a record. `of` is None for plain transactions. `is_durable`: a quorum has
    it."""

    kind: Kind
    xid: int
    at_us: int
    of: Transaction | None = None
    start_lsn: int = 0
    end_lsn: int = 0
    prepare_end_lsn: int = 0
    prepared_at_us: int = 0
    is_durable: bool = False


class Ops:
    """The Ops of all logs of a run."""

    def __init__(self) -> None:
        self._by_key: dict[bytes, Op] = {}

    def wrote(self, log: Log, op: Op) -> None:
        """The last record of `log`."""
        op.start_lsn, op.end_lsn = log.starts[-1], log.ends[-1]
        self._by_key[log.read(op.start_lsn, op.start_lsn + KEY_BYTES)] = op

    def at(self, log: Log, index: int) -> Op | None:
        """Of a record by its number in the log."""
        start_lsn = log.starts[index]
        op = self._by_key.get(log.read(start_lsn, start_lsn + KEY_BYTES))
        return op if op is not None and op.end_lsn == log.ends[index] else None

    def ending_at(self, log: Log, end_lsn: int) -> Op | None:
        index = bisect_left(log.ends, end_lsn)
        return self.at(log, index) if index < len(log.ends) else None

    def of(self, log: Log) -> list[Op]:
        found = (self.at(log, index) for index in range(len(log.ends)))
        return [op for op in found if op is not None]


@dataclass(slots=True)
class Prepared:
    """In the limbo. It is listed from `valid_us` on; `is_busy`: a session has it locked."""

    of: Transaction
    xid: int
    prepared_at_us: int
    end_lsn: int
    valid_us: int = 0
    is_busy: bool = False


@dataclass(slots=True)
class Database:
    """The state after some prefix of the log."""

    next_xid: int = FIRST_XID
    prepared: dict[str, Prepared] = field(default_factory=dict)
    #: Numbers of the transactions whose rows are visible.
    rows: set[int] = field(default_factory=set)
    in_progress: set[int] = field(default_factory=set)
    committed: set[int] = field(default_factory=set)
    #: In the order of the log, for streams.
    ops: list[Op] = field(default_factory=list)

    @classmethod
    def replayed(cls, ops: Ops, log: Log) -> Database:
        """After a crash or a promotion: transactions in progress have ended."""
        database = cls()
        for op in ops.of(log):
            database.apply(op)
        database.in_progress = {prepared.xid for prepared in database.prepared.values()}
        return database

    def apply(self, op: Op) -> None:
        self.ops.append(op)
        self.next_xid = max(self.next_xid, op.xid + 1)
        match op.kind:
            case Kind.WRITE:
                self.in_progress.add(op.xid)
                return
            case Kind.COMMIT:
                self._end(op.xid, is_commit=True)
                return
        assert op.of is not None
        if op.kind is Kind.PREPARE:
            self.in_progress.add(op.xid)
            self.prepared[op.of.name] = Prepared(op.of, op.xid, op.at_us, op.end_lsn, op.at_us)
            return
        del self.prepared[op.of.name]
        self._end(op.xid, is_commit=op.kind is Kind.COMMIT_PREPARED)
        if op.kind is Kind.COMMIT_PREPARED:
            self.rows.add(op.of.number)

    def _end(self, xid: int, *, is_commit: bool) -> None:
        self.in_progress.discard(xid)
        if is_commit:
            self.committed.add(xid)

    def status_of(self, xid: int) -> XidStatus:
        """pg_xact_status()."""
        if xid >= self.next_xid:
            return XidStatus.FUTURE
        if xid in self.in_progress:
            return XidStatus.IN_PROGRESS
        return XidStatus.COMMITTED if xid in self.committed else XidStatus.ABORTED
