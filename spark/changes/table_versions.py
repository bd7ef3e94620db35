"""`TableVersions`: which definition of its table each change of a row has.

    file, (commit_lsn, lsn) --assign()--> number of the version        events_of() --> rows

The numbers are those of `catalog.tables`: tables of merged catalogs whose files the history does
not have, the tables of the catalog from which the history goes on, and the history's versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from quorum_wal.spark.changes.catalog import Catalog, Table
from quorum_wal.spark.changes.change_set import CODE, COMMIT, FIELDS, OID, Gathered
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.heap_fields import (
    INSERT,
    LSN,
    MESSAGE,
    OPERATION,
    RELFILENODE,
    SEQ,
    TRUNCATE,
)
from quorum_wal.spark.changes.schema_history import EventKind, SchemaEvent, SchemaHistory
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.walrecords.record_index import Array

#: the operation of a row that describes a changed definition
SCHEMA = MESSAGE + 1


@dataclass(slots=True)
class _Entries:
    """Versions in the order of their (commit_lsn, lsn); the first one is also valid before."""

    commit_lsns: Array
    lsns: Array
    numbers: Array

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int, int]]) -> _Entries:
        return cls(*np.array(list(entries), np.int64).T)

    def at(self, commit_lsns: Array, lsns: Array) -> Array:
        """The version of each row."""
        before = np.searchsorted(self.commit_lsns, commit_lsns, "left")
        own = np.searchsorted(self.commit_lsns, commit_lsns, "right") - before
        place = before.copy()
        for step in range(int(own.max(initial=0))):
            number = np.minimum(before + step, len(self.lsns) - 1)
            place += (step < own) & (self.lsns[number] <= lsns)
        found: Array = self.numbers[np.maximum(place - 1, 0)]
        return found


class TableVersions:
    """Without a history each table has one version."""

    def __init__(self, catalog: Catalog, history: SchemaHistory | None = None) -> None:
        self._history = history or SchemaHistory(catalog.lsn, catalog.lsn)
        base = next((p for p in catalog.parts if p.lsn == self._history.since_lsn), catalog)
        base = base if history else catalog
        versions = [each.table for each in self._history.versions]
        known = {file for each in (*base.tables, *versions) for file in _files(each)}
        others = [] if base is catalog else [
            each for each in catalog.tables if not known.issuperset(_files(each))
        ]  # fmt: skip
        self._first = len(others) + len(base.tables)
        self._types = {**catalog.types, **base.types}
        self.catalog = catalog.with_tables(
            (*others, *base.tables, *versions),
            {**self._types, **self._history.epochs[0]}.values(),
            {**catalog.ignored, **base.ignored, **self._history.ignored},
        )
        self._datums: dict[int, Datums] = {}
        self._by_file: dict[int, _Entries] = {}
        self._by_oid: dict[int, _Entries] = {}
        if history:
            self._index(range(len(others), self._first))

    def _index(self, base: range) -> None:
        by_file: dict[int, list[tuple[int, int, int]]] = {}
        by_oid: dict[int, list[tuple[int, int, int]]] = {}
        entries = [(-1, -1, number) for number in base] + [
            (each.commit_lsn, each.lsn, self._first + place)
            for place, each in enumerate(self._history.versions)
            if not each.is_dropped
        ]
        for entry in entries:
            table = self.catalog.tables[entry[2]]
            by_oid.setdefault(table.oid, []).append(entry)
            for file in _files(table):
                by_file.setdefault(file, []).append(entry)
        self._by_file = {file: _Entries.of(found) for file, found in by_file.items() if found[1:]}
        self._by_oid = {oid: _Entries.of(found) for oid, found in by_oid.items()}

    def assign(self, changes: Array, commits: Commits) -> None:
        """Replaces the table in `changes[CODE]` by its version."""
        for file, entries in self._by_file.items():
            rows = np.flatnonzero((changes[RELFILENODE] == file) & (changes[CODE] >= 0))
            numbers = entries.at(commits.lsn[changes[COMMIT, rows]], changes[LSN, rows])
            changes[CODE, rows] = 2 * numbers + (changes[CODE, rows] & 1)

    def number_of(self, oid: int, commit_lsn: int, lsn: int) -> int | None:
        """The version of a table, given by its oid."""
        entries = self._by_oid.get(oid)
        if entries is None:
            return None
        return int(entries.at(np.array([commit_lsn]), np.array([lsn]))[0])

    def doubts(self) -> dict[int, str]:
        """Versions whose rows may be shown wrongly, and why."""
        return {
            self._first + place: each.doubt
            for place, each in enumerate(self._history.versions)
            if each.doubt is not None
        }

    def datums_of(self, number: int) -> Datums:
        """The types that are valid for a version."""
        place = number - self._first
        epoch = self._history.versions[place].epoch if place >= 0 else 0
        if epoch not in self._datums:
            self._datums[epoch] = Datums({**self._types, **self._history.epochs[epoch]})
        return self._datums[epoch]

    # ---- events

    def with_events(
        self,
        gathered: Gathered,
        commits: Commits,
        only: Table | None,
        numbers: range | None = None,
    ) -> tuple[Gathered, dict[int, SchemaEvent]]:
        """Adds rows for the events of the transactions with these numbers, by default of all; the
        events of the added rows."""
        numbers = range(len(commits)) if numbers is None else numbers
        events = [
            each for each in self._history.events if self._is_here(each, gathered, commits, numbers)
        ]
        if only is not None:
            events = [each for each in events if self._table(each).oid == only.oid]
        if not events:
            return gathered, {}
        rows, first = np.zeros((FIELDS, len(events)), np.int64), gathered.changes.shape[1]
        for place, event in enumerate(events):
            is_schema = event.kind is EventKind.SCHEMA
            rows[OPERATION, place] = SCHEMA if is_schema else TRUNCATE
            rows[LSN, place] = event.lsn
            rows[COMMIT, place] = np.searchsorted(commits.lsn, event.commit_lsn)
            rows[CODE, place] = 2 * (self._first + event.version)
            rows[OID, place], rows[SEQ, place] = self._table(event).oid, event.seq
        changes = np.concatenate((gathered.changes, rows), axis=1)
        found = {first + place: event for place, event in enumerate(events)}
        return Gathered(changes, gathered.data, gathered.notes), found

    def _table(self, event: SchemaEvent) -> Table:
        return self._history.versions[event.version].table

    def _is_here(
        self, event: SchemaEvent, gathered: Gathered, commits: Commits, numbers: range
    ) -> bool:
        number = int(np.searchsorted(commits.lsn, event.commit_lsn))
        if number not in numbers or commits.lsn[number] != event.commit_lsn:
            return False
        if event.kind is not EventKind.REWRITE:
            return True
        changes = gathered.changes
        inserted = (changes[COMMIT] == number) & (changes[OPERATION] == INSERT)
        return bool((inserted & (changes[CODE] == 2 * (self._first + event.version))).any())


def _files(table: Table) -> set[int]:
    return {table.relfilenode, table.toast_relfilenode} - {0}
