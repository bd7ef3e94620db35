"""`SchemaHistory`: the definitions that tables had, one after the other, in commit order.

    (commit_lsn, lsn)   table              (commit_lsn, lsn)   event
    base catalog        shop.orders v1
    0/5000, 0/4A10      shop.orders v2     0/5000, 0/4A10      SCHEMA   v2
    0/7000, 0/6B20      shop.orders v3     0/7000, 0/6B20      TRUNCATE v3

Law: the version of a row is the last one whose (commit_lsn, lsn) is not after that of the row. So a
transaction that writes after its own DDL sees the new version, and others see it from its commit
on. DDL that changes the format of tuples locks the table until it commits, so no other transaction
writes the table between.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from quorum_wal.spark.changes.catalog import Table, Type
from quorum_wal.spark.changes.change_schema import Note


class EventKind(Enum):
    """What a reader of rows must know beside the rows."""

    #: the definition of a table changed
    SCHEMA = "schema"
    #: all rows of a table were removed, without a TRUNCATE record
    TRUNCATE = "truncate"
    #: rows that are inserted from here on into the version's file replace all rows
    REWRITE = "rewrite"


@dataclass(frozen=True, slots=True)
class TableVersion:
    """The definition of a table from a change of the catalogs on. `doubt` says what may be wrong
    with rows of this version."""

    commit_lsn: int
    lsn: int
    table: Table
    #: the number of the types that were valid then
    epoch: int
    #: the new heap of a rewrite: only the rewrite writes into its file
    is_rewrite: bool = False
    is_dropped: bool = False
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class SchemaEvent:
    """`version` is the number of the table's version after it. Definitions are JSON; None: the
    table did not exist, or does not exist any more."""

    commit_lsn: int
    lsn: int
    kind: EventKind
    version: int
    #: the number of the event among those of its transaction with this LSN
    seq: int = 0
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """What is unknown because of a place of the WAL."""

    lsn: int
    #: of the transaction, for a change of the catalogs
    commit_lsn: int
    kind: Note
    text: str


@dataclass(slots=True)
class SchemaHistory:
    """The history from a catalog on, up to `until_lsn`."""

    #: the LSN of the catalog
    since_lsn: int
    until_lsn: int
    versions: list[TableVersion] = field(default_factory=list)
    events: list[SchemaEvent] = field(default_factory=list)
    #: types that changed after the catalog; later entries have all types of the earlier ones
    epochs: list[dict[int, Type]] = field(default_factory=lambda: [{}])
    #: files without rows to show, and their names
    ignored: dict[int, str] = field(default_factory=dict)
    #: changes that could not be followed
    problems: list[Problem] = field(default_factory=list)
    #: WAL that was not searched
    gaps: list[Problem] = field(default_factory=list)

    def part(self, start_lsn: int, end_lsn: int, *, is_first: bool) -> SchemaHistory:
        """What a task needs for the transactions that commit in this range. The first task reports
        the problems that are older."""
        last = {
            each.table.oid: number
            for number, each in enumerate(self.versions)
            if each.commit_lsn < start_lsn
        }
        kept = [
            number
            for number, each in enumerate(self.versions)
            if start_lsn <= each.commit_lsn < end_lsn or last.get(each.table.oid) == number
        ]
        places = {number: place for place, number in enumerate(kept)}
        events = [
            replace(each, version=places[each.version])
            for each in self.events
            if start_lsn <= each.commit_lsn < end_lsn
        ]
        first_lsn = 0 if is_first else start_lsn
        return SchemaHistory(
            self.since_lsn,
            self.until_lsn,
            [self.versions[number] for number in kept],
            events,
            self.epochs,
            self.ignored,
            [each for each in self.problems if first_lsn <= each.commit_lsn < end_lsn],
            [each for each in self.gaps if is_first and each.lsn < start_lsn],
        )

    def problems_of(self, start_lsn: int, end_lsn: int) -> list[Problem]:
        """What the reader of a range reports. Tasks report the gaps of their own ranges."""
        earlier = [each for each in self.gaps if each.lsn < start_lsn]
        return earlier + [each for each in self.problems if each.commit_lsn < end_lsn]
