"""`TransactionOutline`: the few changes of a large transaction that decide about the others.

    piece --add--> new files, truncated tables        all of them
                   pages, rows of an unknown file     the first one of each file, and their number
                   inserted rows                      the first one of each table
                   cancelled insertions               where they are

The outline is arranged as if it were the transaction. Its rows are shown in their places between
the rows of the pieces, from which `plain` removes what the outline represents. Law: the rows are
those of a transaction that is arranged as a whole. Memory grows with files and cancelled
insertions.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np

from quorum_wal.spark.changes.change_files import UNKNOWN
from quorum_wal.spark.changes.change_rows import ChangeRows, inserted_before, is_super
from quorum_wal.spark.changes.change_set import CODE, COMMIT, FIELDS, TUPLES_ROOM, Gathered
from quorum_wal.spark.changes.heap_fields import (
    CREATE_FILE,
    DAMAGED,
    DELETE,
    DROP_FILE,
    EMPTY_FILE,
    INSERT,
    MESSAGE,
    NEW_AT,
    NEW_LENGTH,
    NEW_PAGE,
    OLD_AT,
    OLD_LENGTH,
    OPERATION,
    RELFILENODE,
    TRUNCATE,
    UPDATE,
)
from quorum_wal.walrecords.record_index import Array

_ABOUT_FILES = (TRUNCATE, CREATE_FILE, EMPTY_FILE, DROP_FILE)
_OF_ROWS = (INSERT, UPDATE, DELETE)


class TransactionOutline:
    """Pieces must be added in the order of the WAL, and be of one transaction."""

    def __init__(self) -> None:
        self._parts: list[Array] = [np.empty((FIELDS, 0), np.int64)]
        self._rows = 0
        #: row of the outline -> the changes that it represents
        self.counts: dict[int, int] = {}
        #: (kind of change, file or code) -> its row of the outline
        self._firsts: dict[tuple[int, int], int] = {}
        #: the rows of each piece that are not shown, because an insertion was cancelled
        self._cancelled: list[set[int]] = []

    def add(self, piece: Gathered) -> list[Array]:
        """Returns the changes that cancel an insertion of an earlier piece: see `cancel`."""
        changes = piece.changes
        operation, code = changes[OPERATION], changes[CODE]
        is_known = (code >= 0) & (code & 1 == 0)
        chosen = set(np.flatnonzero(np.isin(operation, _ABOUT_FILES)).tolist())
        firsts = {}
        for kind, of_kind, name in (
            (UNKNOWN, (code == UNKNOWN) & np.isin(operation, (*_OF_ROWS, NEW_PAGE)), RELFILENODE),
            (INSERT, is_known & (operation == INSERT), CODE),
            (NEW_PAGE, is_known & (operation == NEW_PAGE), CODE),
        ):
            rows = np.flatnonzero(of_kind)
            names, first, counts = np.unique(
                changes[name, rows], return_index=True, return_counts=True
            )
            for value, row, count in zip(
                names.tolist(), rows[first].tolist(), counts.tolist(), strict=True
            ):
                if (kind, value) in self._firsts:
                    self.counts[self._firsts[kind, value]] += count
                else:
                    firsts[row] = (kind, value, count)
        ordered = sorted(chosen | firsts.keys())
        for place, row in enumerate(ordered, self._rows):
            if row in firsts:
                kind, value, count = firsts[row]
                self._firsts[kind, value] = place
                self.counts[place] = count
        self._append(changes[:, ordered])
        return self._cancel(changes)

    def _append(self, rows: Array) -> None:
        for at, length in ((NEW_AT, NEW_LENGTH), (OLD_AT, OLD_LENGTH)):
            rows[at] = rows[length] = 0  # the tuples are not kept
        self._parts.append(rows)
        self._rows += rows.shape[1]

    def gathered(self) -> Gathered:
        """The outline as a set."""
        data = np.zeros(1 + TUPLES_ROOM, np.uint8)
        return Gathered(np.concatenate(self._parts, axis=1), data, {})

    # ---- cancelled insertions

    def _cancel(self, changes: Array) -> list[Array]:
        cancelled: set[int] = set()
        unresolved = []
        for row in np.flatnonzero(is_super(changes)).tolist():
            inserted = inserted_before(changes[:, :row], changes[:, row])
            cancelled |= {row, *inserted[-1:].tolist()}
            if not len(inserted):
                unresolved.append(changes[:, row])
        self._cancelled.append(cancelled)
        return unresolved

    def cancel(self, number: int, piece: Gathered, deleted: Array) -> bool:
        """Whether the insertion that `deleted` cancels is in this piece, given by its number."""
        inserted = inserted_before(piece.changes, deleted)
        self._cancelled[number].update(inserted[-1:].tolist())
        return len(inserted) > 0

    # ---- rows

    def shown(self, rows: ChangeRows) -> Array:
        """Which arranged rows of the outline are shown: not the first insertions, which their
        pieces have, unless they represent a rewritten table."""
        is_first = np.zeros(self._rows, np.bool_)
        is_first[[row for (kind, _), row in self._firsts.items() if kind == INSERT]] = True
        places = np.arange(len(rows)) if rows.places is None else rows.places
        mine = places < self._rows
        hidden = np.zeros(len(rows), np.bool_)
        hidden[mine] = is_first[places[mine]]
        is_rewritten = _is_among(rows.changes[COMMIT], rows.table, rows.rewritten)
        found: Array = ~hidden | is_rewritten
        return found

    def plain(self, number: int, piece: Gathered, rewritten: Set[tuple[int, int]]) -> Gathered:
        """The changes of a piece, given by its number, that the outline does not represent."""
        changes = piece.changes
        operation, code = changes[OPERATION], changes[CODE]
        is_plain = (code >= 0) & (code & 1 == 0) & np.isin(operation, _OF_ROWS)
        is_plain &= ~((operation == INSERT) & _is_among(changes[COMMIT], code // 2, rewritten))
        is_plain |= (operation == DAMAGED) & (code & 1 == 0)
        is_plain |= operation == MESSAGE
        is_plain[list(self._cancelled[number])] = False
        chosen = np.flatnonzero(is_plain)
        noted = np.flatnonzero(np.isin(chosen, list(piece.notes))) if piece.notes else ()
        notes = {int(place): piece.notes[int(chosen[place])] for place in noted}
        return Gathered(changes[:, chosen], piece.data, notes)


def _is_among(commits: Array, tables: Array, names: Set[tuple[int, int]]) -> Array:
    found = np.zeros(len(commits), np.bool_)
    for commit, table in names:
        found |= (commits == commit) & (tables == table)
    return found
