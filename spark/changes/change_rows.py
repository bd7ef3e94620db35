"""The changes of transactions as rows for a reader. Some changes are removed or summarized.

    removed     TOAST chunks, which are part of their rows; speculative insertions that failed
    summarized  all changes of a file that is not in the catalog; all of a rewritten table

Rows are ordered by the commits of their transactions, then by LSN, then by `seq`. A row that
summarizes others has the place of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field

import numpy as np

from quorum_wal.spark.changes.catalog import Catalog, Table
from quorum_wal.spark.changes.change_files import UNKNOWN
from quorum_wal.spark.changes.change_set import CODE, COMMIT, OID, Gathered
from quorum_wal.spark.changes.heap_fields import (
    BLOCK,
    CREATE_FILE,
    DAMAGED,
    DELETE,
    DROP_FILE,
    EMPTY_FILE,
    FLAGS,
    INSERT,
    IS_LOGICAL,
    IS_SUPER,
    LSN,
    MESSAGE,
    NEW_AT,
    NEW_LENGTH,
    NEW_PAGE,
    OFFSET,
    OLD_BLOCK,
    OLD_LENGTH,
    OLD_OFFSET,
    OPERATION,
    PAGE_IMAGE,
    RELFILENODE,
    TRUNCATE,
    UPDATE,
)
from quorum_wal.walrecords.record_index import Array

#: the operation of a row that reports what could not be decoded
UNDECODED = 0
NO_TABLE = -1

#: in infomask2, with which a tuple begins
_COLUMNS_MASK = 0x07FF

_REWRITTEN = (
    "the table was rewritten into a new file (VACUUM FULL, CLUSTER, or ALTER TABLE); "
    "its rows are unchanged, except for the effect of the ALTER TABLE"
)
_REPLACED = (
    "the table was given a new file, by TRUNCATE or by a rewrite; "
    "the inserts from here on are all of its rows"
)
_DROPPED = (
    "the file of the table was deleted: the table was dropped, or given a new file that the "
    "catalog does not have, by TRUNCATE or by a rewrite: take a new catalog, or add the one of "
    "that time"
)
_PAGES = "whole pages of the table were written; their rows are not decoded"
_NO_OLD_ROW = "the deleted row is not in the WAL"
_NO_UPDATED_ROW = "the row before the update is not in the WAL"
_UNKNOWN_TRUNCATED = (
    "the table with oid {}, which the catalog does not have, was truncated: take a new catalog, or "
    "add the one of that time"
)
_DAMAGED = "the record does not have the format of its kind"


@dataclass(frozen=True, slots=True)
class ChangeRows:
    """`changes` as in a set; all of them are shown. `table` is the number in the catalog, or
    NO_TABLE. `notes` are by row."""

    changes: Array
    table: Array
    notes: dict[int, str]
    #: the rows' numbers in the set; None: as they are
    places: Array | None = None
    #: of rows with a changed definition: the definition after and before, as JSON
    definitions: Mapping[int, tuple[str | None, str | None]] = field(default_factory=dict)
    #: (transaction, table) of rewritten tables, whose insertions one row summarizes
    rewritten: Set[tuple[int, int]] = frozenset()

    def place_of(self, row: int) -> int | None:
        """Where a row of the set is shown; None if it is not."""
        if self.places is None:
            return row
        found = np.flatnonzero(self.places == row)
        return int(found[0]) if len(found) else None

    def __len__(self) -> int:
        return len(self.table)


@dataclass(frozen=True, slots=True)
class Followed:
    """What is known because the catalogs were followed: the rows for which files and definitions
    are known, and the table that a TRUNCATE of a row names."""

    rows: Array
    table_of: Callable[[int, int], int | None]


def arrange(
    gathered: Gathered,
    catalog: Catalog,
    only: Table | None = None,
    followed: Followed | None = None,
    counts: Mapping[int, int] | None = None,
) -> ChangeRows:
    """The rows to show: of this table, or of all tables. `counts`: rows of the set that represent
    several changes of a file."""
    return _Arrangement(gathered, catalog, only, followed, counts or {}).arrange()


class _Arrangement:
    """Removes and summarizes rows, identified by their numbers in the set."""

    def __init__(
        self,
        gathered: Gathered,
        catalog: Catalog,
        only: Table | None,
        followed: Followed | None,
        counts: Mapping[int, int],
    ) -> None:
        self._followed = followed
        self._counts = counts
        self._rewritten: set[tuple[int, int]] = set()
        self._changes = gathered.changes
        self._catalog = catalog
        self._only = only
        self._notes = dict(gathered.notes)
        code = self._changes[CODE]
        self._table = np.where(code >= 0, code // 2, NO_TABLE)
        self._shown = (code & 1 == 0) | (code == UNKNOWN)
        self._shown |= self._changes[OPERATION] == MESSAGE

    def arrange(self) -> ChangeRows:
        changes, operation = self._changes, self._changes[OPERATION]
        self._forget_files()
        self._assign_truncated()
        for row in np.flatnonzero(operation == DAMAGED).tolist():
            self._undecoded(row, _DAMAGED)
        self._shown &= operation != PAGE_IMAGE
        self._remove_speculative()
        self._summarize_files()
        self._summarize_unknown()
        self._shown &= operation != CREATE_FILE
        self._note_lost_rows()
        has_none = (operation == INSERT) | (operation == UPDATE)
        has_none &= (changes[NEW_LENGTH] == 0) & self._shown
        for row in np.flatnonzero(has_none).tolist():
            self._undecoded_row(row)
        order = np.lexsort((changes[LSN], changes[COMMIT]))
        order = order[self._shown[order]]
        if len(order) == len(self._shown) and (order[:-1] < order[1:]).all():
            return ChangeRows(  # no copy
                changes, self._table, self._notes, rewritten=self._rewritten
            )
        noted = np.flatnonzero(np.isin(order, list(self._notes))) if self._notes else ()
        notes = {int(place): self._notes[int(order[place])] for place in noted}
        return ChangeRows(
            changes[:, order], self._table[order], notes, order, rewritten=self._rewritten
        )

    def _note_lost_rows(self) -> None:
        """Old rows that are unknown. An update for logical decoding omits an unchanged identity."""
        changes, operation = self._changes, self._changes[OPERATION]
        is_lost = self._shown & (changes[OLD_LENGTH] == 0)
        is_update = (operation == UPDATE) & (changes[FLAGS] & IS_LOGICAL == 0)
        for lost, note in (
            (is_lost & (operation == DELETE), _NO_OLD_ROW),
            (is_lost & is_update, _NO_UPDATED_ROW),
        ):
            for row in np.flatnonzero(lost).tolist():
                self._notes.setdefault(row, note)

    def _undecoded(self, row: int, note: str) -> None:
        self._changes[OPERATION, row] = UNDECODED
        self._notes[row] = note

    def _undecoded_row(self, row: int) -> None:
        """The change of a row whose new tuple is unknown: the note says which change it is."""
        name = "insert" if self._changes[OPERATION, row] == INSERT else "update"
        self._undecoded(row, f"{name}: {self._notes.get(row, 'the record has no row')}")

    def _assign_truncated(self) -> None:
        """A partitioned table has no file; its partitions are truncated. TRUNCATE names oids, so a
        table that the catalog does not have is another one than `only`."""
        numbers = {
            table.oid: number
            for number, table in enumerate(self._catalog.tables)
            if table.relfilenode and (self._only is None or table.oid == self._only.oid)
        }
        for row in np.flatnonzero(self._changes[OPERATION] == TRUNCATE).tolist():
            oid = int(self._changes[OID, row])
            number = numbers.get(oid)
            if number is not None and self._followed is not None and self._followed.rows[row]:
                number = self._followed.table_of(row, oid)
            self._shown[row] = number is not None
            self._table[row] = NO_TABLE if number is None else number
            if self._only is None and oid not in self._catalog.by_oid:
                self._shown[row] = True
                self._undecoded(row, _UNKNOWN_TRUNCATED.format(oid))

    def _remove_speculative(self) -> None:
        """Removes the insertion of an INSERT ... ON CONFLICT that found its conflict too late."""
        changes = self._changes
        for row in np.flatnonzero(is_super(changes)).tolist():
            self._shown[row] = False
            self._shown[inserted_before(changes[:, :row], changes[:, row])[-1:]] = False

    def _forget_files(self) -> None:
        """New files and whole pages change no row of a followed table: VACUUM FULL, CLUSTER and
        SET TABLESPACE copy its rows, and other reasons for a new file are events of their own."""
        operation = self._changes[OPERATION]
        if self._followed is not None:
            known = (self._table >= 0) & self._followed.rows
            if self._catalog.wal_level != "logical":
                emptied = known & self._shown & (operation == EMPTY_FILE)
                self._empty_files(np.flatnonzero(emptied).tolist())
            operation[known & np.isin(operation, (NEW_PAGE, CREATE_FILE, DROP_FILE))] = PAGE_IMAGE
        operation[operation == EMPTY_FILE] = PAGE_IMAGE

    def _empty_files(self, rows: list[int]) -> None:
        """A TRUNCATE keeps the file if the transaction has created it. VACUUM removes all blocks of
        a file, too, but creates none."""
        changes = self._changes
        names = np.stack((changes[COMMIT], changes[RELFILENODE]))
        created = names[:, changes[OPERATION] == CREATE_FILE]
        for row in rows:
            if (created == names[:, row : row + 1]).all(axis=0).any():
                changes[OPERATION, row] = TRUNCATE
                changes[OID, row] = self._catalog.tables[self._table[row]].oid

    def _summarize_files(self) -> None:
        """Tables that got a new file, and pages written without records of their rows."""
        changes, operation = self._changes, self._changes[OPERATION]
        truncated = {
            (int(changes[COMMIT, row]), int(self._table[row]))
            for row in np.flatnonzero(operation == TRUNCATE).tolist()
        }
        replaced = {}
        for row in np.flatnonzero((operation == CREATE_FILE) & (self._table >= 0)).tolist():
            table = self._catalog.tables[self._table[row]]
            name = int(changes[COMMIT, row]), int(self._table[row])
            newest = self._number_of(table.oid)
            if table.relfilenode != table.oid and (name[0], newest) not in truncated:
                replaced[name] = row
        for (commit, number), row in replaced.items():
            same = (changes[COMMIT] == commit) & (self._table == number)
            if self._catalog.wal_level == "logical":
                rows = np.flatnonzero(same & np.isin(operation, (INSERT, NEW_PAGE)))
                self._rewritten.add((commit, number))
                self._summarize(rows.tolist() or [row], _REWRITTEN)
            else:
                rows = np.flatnonzero(same & (operation == NEW_PAGE))
                self._summarize(rows.tolist() or [row], _PAGES if len(rows) else _REPLACED)
        self._summarize_pages(replaced)
        self._note_dropped(replaced)

    def _note_dropped(self, replaced: Iterable[tuple[int, int]]) -> None:
        """Tables whose file was deleted in a transaction that created an unknown one."""
        changes, operation = self._changes, self._changes[OPERATION]
        is_created = (operation == CREATE_FILE) & (changes[CODE] == UNKNOWN)
        commits = set(changes[COMMIT, is_created].tolist())
        for row in np.flatnonzero(operation == DROP_FILE).tolist():
            commit, number = int(changes[COMMIT, row]), int(self._table[row])
            newest = self._number_of(self._catalog.tables[number].oid)
            self._shown[row] = commit in commits and (commit, newest) not in replaced
            if self._shown[row]:
                self._undecoded(row, _DROPPED)

    def _summarize_pages(self, replaced: Iterable[tuple[int, int]]) -> None:
        changes = self._changes
        rows = np.flatnonzero((changes[OPERATION] == NEW_PAGE) & (self._table >= 0) & self._shown)
        groups: dict[tuple[int, int], list[int]] = {}
        for row in rows.tolist():
            groups.setdefault((int(changes[COMMIT, row]), int(self._table[row])), []).append(row)
        for name, members in groups.items():
            if name not in replaced:
                self._summarize(members, _PAGES)

    def _number_of(self, oid: int) -> int:
        """The newest table with this oid, which is the one that TRUNCATE names."""
        tables = self._catalog.tables
        return max(number for number, table in enumerate(tables) if table.oid == oid)

    def _summarize_unknown(self) -> None:
        changes = self._changes
        is_change = np.isin(changes[OPERATION], (INSERT, UPDATE, DELETE, NEW_PAGE))
        groups: dict[tuple[int, int], list[int]] = {}
        for row in np.flatnonzero((changes[CODE] == UNKNOWN) & is_change).tolist():
            name = int(changes[COMMIT, row]), int(changes[RELFILENODE, row])
            groups.setdefault(name, []).append(row)
        for (_, file), rows in groups.items():
            count = sum(self._counts.get(row, 1) for row in rows)
            self._summarize(
                rows,
                f"{count} changes of relation {self._catalog.database_oid}/{file}, which the "
                f"catalog does not have: take a new one, or add the one of that time",
            )

    def _summarize(self, rows: list[int], note: str) -> None:
        """Replaces all rows by one, at the place of the first."""
        self._shown[rows] = False
        self._shown[rows[0]] = True
        self._undecoded(rows[0], note)


def is_super(changes: Array) -> Array:
    """Which changes cancel a speculative insertion."""
    found: Array = (changes[OPERATION] == DELETE) & (changes[FLAGS] & IS_SUPER != 0)
    return found


def inserted_before(changes: Array, deleted: Array) -> Array:
    """The insertions into the place of a deleted row by its transaction."""
    same = changes[RELFILENODE] == deleted[RELFILENODE]
    same &= changes[BLOCK] == deleted[OLD_BLOCK]
    same &= changes[OFFSET] == deleted[OLD_OFFSET]
    same &= (changes[OPERATION] == INSERT) & (changes[COMMIT] == deleted[COMMIT])
    return np.flatnonzero(same)


def is_stale(parts: Iterable[Gathered], catalog: Catalog) -> bool:
    """Whether there are changes of files that the catalog does not have, rows with more columns
    than it has, or tables that may have been given a new file."""
    is_created, is_dropped = False, False
    for part in parts:
        operation, is_unknown = part.changes[OPERATION], part.changes[CODE] == UNKNOWN
        if (is_unknown & (operation <= DELETE)).any() or _has_more_columns(part, catalog):
            return True
        is_created |= bool((is_unknown & (operation == CREATE_FILE)).any())
        is_dropped |= bool((operation == DROP_FILE).any())
    return is_created and is_dropped


def _has_more_columns(gathered: Gathered, catalog: Catalog) -> bool:
    changes, data = gathered.changes, gathered.data
    whole = (changes[OPERATION] <= DELETE) & (changes[CODE] & 1 == 0) & (changes[NEW_LENGTH] > 0)
    at, code = changes[NEW_AT, whole], changes[CODE, whole]
    known = np.array([len(table.columns) for table in catalog.tables] or [0], np.int64)
    low, high = data[at].astype(np.int64), data[at + 1].astype(np.int64)
    return bool(((high << 8 | low) & _COLUMNS_MASK > known[code // 2]).any())
