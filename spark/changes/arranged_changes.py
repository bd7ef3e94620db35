"""`ChangeArranger`: the rows to show of gathered changes, in order, in parts that fit into memory.

    gathered in memory                                      one part
    spilled  transactions that fit into a piece together    one part for them
             a larger transaction                           its outline; a part for each piece

Law: the parts together have the rows that all changes, arranged as a whole, have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from quorum_wal.spark.changes.catalog import Table
from quorum_wal.spark.changes.change_rows import ChangeRows, Followed, arrange
from quorum_wal.spark.changes.change_set import COMMIT, Gathered
from quorum_wal.spark.changes.change_spill import ChangeSpill
from quorum_wal.spark.changes.heap_fields import LSN
from quorum_wal.spark.changes.schema_history import EventKind, SchemaHistory
from quorum_wal.spark.changes.table_versions import TableVersions
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.spark.changes.transaction_outline import TransactionOutline
from quorum_wal.walrecords.record_index import Array

#: rows, and the tuples that they have
Part = tuple[ChangeRows, Array]


class ChangeArranger:
    """`only` is the only table. Without a history, definitions do not change."""

    def __init__(
        self, versions: TableVersions, history: SchemaHistory | None, only: Table | None
    ) -> None:
        self._versions = versions
        self._history = history
        self._only = only

    def spilled(self, spill: ChangeSpill, commits: Commits) -> Iterator[Part]:
        """The parts of all transactions. Raises SpillError."""
        for numbers in spill.groups():
            if spill.is_large(numbers):
                yield from self._large(spill, commits, numbers)
            else:
                gathered = spill.whole(numbers)
                yield self.whole(gathered, commits, numbers), gathered.data

    def whole(
        self,
        gathered: Gathered,
        commits: Commits,
        numbers: range | None = None,
        counts: Mapping[int, int] | None = None,
    ) -> ChangeRows:
        """The rows of transactions whose changes are all in this set, given by their numbers; by
        default of all. Changed definitions have rows, too."""
        tables = self._versions.catalog
        if self._history is None:
            return arrange(gathered, tables, self._only, counts=counts)
        with_events, events = self._versions.with_events(gathered, commits, self._only, numbers)
        followed = self._followed(with_events, commits)
        rows = arrange(with_events, tables, self._only, followed, counts)
        places = {rows.place_of(row): event for row, event in events.items()}
        return replace(
            rows,
            definitions={
                place: (event.after, event.before)
                for place, event in places.items()
                if place is not None and event.kind is EventKind.SCHEMA
            },
        )

    def _followed(self, gathered: Gathered, commits: Commits) -> Followed | None:
        if self._history is None:
            return None
        changes = gathered.changes
        commit_lsns = commits.lsn[changes[COMMIT]]

        def table_of(row: int, oid: int) -> int | None:
            return self._versions.number_of(oid, int(commit_lsns[row]), int(changes[LSN, row]))

        return Followed(commit_lsns >= self._history.since_lsn, table_of)

    # ---- a large transaction

    def _large(self, spill: ChangeSpill, commits: Commits, numbers: range) -> Iterator[Part]:
        outline = _outline(spill, numbers)
        found = self.whole(outline.gathered(), commits, numbers, outline.counts)
        rest = _chosen(found, outline.shown(found))
        for number, piece in enumerate(spill.pieces(numbers)):
            plain = outline.plain(number, piece, found.rewritten)
            if not plain.changes.shape[1]:
                continue
            rows = arrange(
                plain, self._versions.catalog, self._only, self._followed(plain, commits)
            )
            is_now = rest.changes[LSN] <= plain.changes[LSN, -1]
            yield _merged(rows, _chosen(rest, is_now)), piece.data
            rest = _chosen(rest, ~is_now)
        yield rest, outline.gathered().data


def _outline(spill: ChangeSpill, numbers: range) -> TransactionOutline:
    outline = TransactionOutline()
    for number, piece in enumerate(spill.pieces(numbers)):
        for deleted in outline.add(piece):
            _cancel(outline, spill, numbers, number, deleted)
    return outline


def _cancel(
    outline: TransactionOutline, spill: ChangeSpill, numbers: range, number: int, deleted: Array
) -> None:
    """Finds the insertion in the pieces before; in almost all cases it is in the last of them."""
    for before in range(number - 1, -1, -1):
        if outline.cancel(before, spill.piece(numbers, before), deleted):
            return


def _chosen(rows: ChangeRows, is_chosen: Array) -> ChangeRows:
    return _at(rows, np.flatnonzero(is_chosen))


def _at(rows: ChangeRows, order: Array) -> ChangeRows:
    """The rows in this order."""
    places = {int(row): place for place, row in enumerate(order)} if _has_texts(rows) else {}
    return ChangeRows(
        rows.changes[:, order],
        rows.table[order],
        {places[row]: note for row, note in rows.notes.items() if row in places},
        definitions={places[row]: each for row, each in rows.definitions.items() if row in places},
    )


def _has_texts(rows: ChangeRows) -> bool:
    return bool(rows.notes or rows.definitions)


def _merged(rows: ChangeRows, added: ChangeRows) -> ChangeRows:
    """Both, in the order of the WAL."""
    if not len(added):
        return rows
    first = len(rows)
    both = ChangeRows(
        np.concatenate((rows.changes, added.changes), axis=1),
        np.concatenate((rows.table, added.table)),
        {**rows.notes, **{first + row: note for row, note in added.notes.items()}},
        definitions={first + row: each for row, each in added.definitions.items()},
    )
    return _at(both, np.argsort(both.changes[LSN], kind="stable"))
