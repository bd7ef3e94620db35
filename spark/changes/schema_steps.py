"""`SchemaSteps`: makes a history of table definitions from the committed changes of the catalogs.

    a transaction's steps, each a list of changes --commit()--> versions of tables, and events

Files. TRUNCATE, and everything that moves or rewrites a table, gives the table a new file. A
rewrite first creates a new heap, whose row of pg_class names the rewritten table; SET TABLESPACE
changes the tablespace in the same row; what remains is a TRUNCATE. VACUUM FULL and CLUSTER write
whole pages into the new heap, an ALTER TABLE inserts rows. Source: Postgres `cluster.c`,
`tablecmds.c`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import Catalog, Table, Type
from quorum_wal.spark.changes.catalog_rows import ClassRow, Row
from quorum_wal.spark.changes.catalog_state import FIRST_NORMAL_OID, CatalogState
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.changes.schema_history import (
    EventKind,
    Problem,
    SchemaEvent,
    SchemaHistory,
    TableVersion,
)
from quorum_wal.spark.changes.table_definition import (
    Definition,
    definition_json,
    definition_of,
)
from quorum_wal.walrecords.record_index import Array


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """`count` numbers the changes in the order of the WAL. `problem` says why it is unknown."""

    lsn: int
    count: int
    old: Row | None
    new: Row | None
    problem: str | None = None

    @property
    def rows(self) -> tuple[Row, ...]:
        return tuple(row for row in (self.old, self.new) if row is not None)


@dataclass(frozen=True, slots=True)
class _Known:
    """A relation as it is shown."""

    table: Table | None
    definition: Definition | None


_NOTHING = _Known(None, None)


class SchemaSteps:
    """Transactions must be given in the order of their commits."""

    def __init__(self, catalog: Catalog, state: CatalogState) -> None:
        self.state = state
        self._logs_truncate = catalog.wal_level == "logical"
        self.history = SchemaHistory(catalog.lsn, catalog.lsn)
        self._types: dict[int, Type] = dict(catalog.types)
        #: files of new heaps of rewrites
        self._new_heaps: set[int] = set()
        #: the number of the last version of each table
        self._numbers: dict[int, int] = {}
        #: rewritten tables that become visible with the rewrite (SET LOGGED)
        self._announced: dict[int, Definition | None] = {}
        self._ignored: Array | None = None
        self._commit_lsn = 0
        #: how many events of the transaction have an LSN
        self._seqs: dict[int, int] = {}

    def add_new_heap(self, row: ClassRow) -> None:
        """A heap into which a table or a catalog is rewritten, if the transaction commits."""
        self._new_heaps.add(row.file)
        if row.relrewrite < FIRST_NORMAL_OID:
            self.history.ignored[row.file] = row.relname

    def ignored_files(self) -> Array:
        """Files whose rows are no rows of tables: catalogs that were rewritten, views, indexes."""
        if self._ignored is None:
            files = [
                row.file
                for row in self.state.classes.values()
                if row.file and (row.relkind not in "rpt" or row.oid < FIRST_NORMAL_OID)
            ]
            self._ignored = np.array(sorted(files), np.int64)
        return self._ignored

    def commit(self, commit_lsn: int, steps: list[list[CatalogChange]]) -> None:
        self._commit_lsn = commit_lsn
        self._seqs.clear()
        for step in steps:
            for part in self._parts(step):
                self._step(part)
        self._announced.clear()
        self._ignored = None

    def _parts(self, step: list[CatalogChange]) -> Iterator[list[CatalogChange]]:
        """A TRUNCATE empties the table as the changes before it have left it."""
        begin = 0
        for place, change in enumerate(step):
            if place > begin and self._is_truncated(change):
                yield step[begin:place]
                begin = place
        yield step[begin:]

    def _step(self, changes: list[CatalogChange]) -> None:
        state, lsn = self.state, changes[-1].lsn
        for change in changes:
            if change.problem is not None:
                self._report(
                    change.lsn,
                    f"a change of a system catalog at {format_lsn(change.lsn)} cannot be followed, "
                    f"and tables are shown as before: {change.problem}",
                )
        rows = [row for change in changes for row in change.rows]
        types = {oid for row in rows for oid in state.types_of(row)}
        relations = {oid for row in rows for oid in state.relations_of(row)}
        relations |= self._users(types)
        before = {oid: self._known(oid) for oid in relations}
        if isinstance(changes[0].new, ClassRow) and self._is_truncated(changes[0]):
            self._event(changes[0].new.oid, changes[0].lsn, EventKind.TRUNCATE)
        for change in changes:
            state.apply(change.old, change.new)
        changed_types = self._change_types(types)
        users = self._users(changed_types)
        for oid in sorted(relations | users, key=lambda oid: (self._is_heap(oid), oid)):
            self._change(oid, lsn, before.get(oid, _NOTHING), is_forced=oid in users)

    def _report(self, lsn: int, text: str) -> None:
        """Once for each LSN, because rows with the same LSN must be equal."""
        problems = self.history.problems
        if not problems or problems[-1].lsn != lsn:
            problems.append(Problem(lsn, self._commit_lsn, Note.NOT_FOLLOWED, text))

    def _known(self, oid: int) -> _Known:
        return _Known(self.state.table(oid), definition_of(self.state, oid))

    def _is_heap(self, oid: int) -> bool:
        row = self.state.classes.get(oid)
        return row is not None and row.relrewrite != 0

    def _users(self, types: set[int]) -> set[int]:
        """The tables with columns of types that exist already."""
        known = types & self._types.keys()
        return self.state.users_of(known) if known else set()

    def _change_types(self, oids: set[int]) -> set[int]:
        """Takes over types that are new or have changed; returns those that have changed. More
        labels are no change for the rows of older ones."""
        changed = {}
        for oid in oids:
            found, known = self.state.type(oid), self._types.get(oid)
            if found is None or found == known:
                continue
            self._types[oid] = found
            is_used = known is not None and bool(self.state.users_of((oid,)))
            if known is not None and is_used and not _has_more_labels(known, found):
                changed[oid] = found
            else:
                self.history.epochs[-1][oid] = found
        if changed:
            self.history.epochs.append({**self.history.epochs[-1], **changed})
        return set(changed)

    def _is_truncated(self, change: CatalogChange) -> bool:
        """Whether the change of pg_class is that of a TRUNCATE."""
        old, new = change.old, change.new
        if self._logs_truncate or not isinstance(old, ClassRow) or not isinstance(new, ClassRow):
            return False
        return (
            self.state.is_shown(old)
            and self.state.is_shown(new)
            and old.relfilenode not in (0, new.relfilenode)
            and new.relfilenode not in self._new_heaps
            and new.reltablespace == old.reltablespace
            and not new.relrewrite
        )

    def _change(self, oid: int, lsn: int, before: _Known, *, is_forced: bool) -> None:
        """A relation after the step."""
        after = self._known(oid)
        if after.table is None:
            self._ignore(oid)
            if self.state.is_incomplete(oid):
                self._report(
                    lsn, f"columns of relation {oid} are not known: changes of catalogs are lost"
                )
            if before.table is not None and before.table.oid == oid:
                self._drop(lsn, before)
            return
        is_heap = self._is_heap(oid)
        if after.table != before.table or is_forced:
            doubt = self.state.doubt_of(oid)
            self._add(lsn, after.table, is_rewrite=is_heap, doubt=doubt)
        if is_heap:
            self._rewrite(lsn, after)
        elif after.definition != before.definition:
            announced = self._announced.pop(oid, None)
            if before.table is not None or announced != after.definition:
                self._event(oid, lsn, EventKind.SCHEMA, before, after)

    def _rewrite(self, lsn: int, heap: _Known) -> None:
        """A new heap with the columns that the rewritten table gets."""
        assert heap.table is not None
        oid = heap.table.oid
        if self.state.table(oid) is None:
            self._announced[oid] = heap.definition
            self._event(oid, lsn, EventKind.SCHEMA, _NOTHING, heap)
        else:
            self._event(oid, lsn, EventKind.REWRITE)

    def _drop(self, lsn: int, before: _Known) -> None:
        assert before.table is not None
        self._add(lsn, before.table, is_dropped=True)
        self._event(before.table.oid, lsn, EventKind.SCHEMA, before, _NOTHING)

    def _add(
        self, lsn: int, table: Table, *, is_rewrite: bool = False, is_dropped: bool = False,
        doubt: str | None = None,
    ) -> None:  # fmt: skip
        versions, epoch = self.history.versions, len(self.history.epochs) - 1
        self._numbers[table.oid] = len(versions)
        versions.append(
            TableVersion(self._commit_lsn, lsn, table, epoch, is_rewrite, is_dropped, doubt)
        )

    def _event(
        self, oid: int, lsn: int, kind: EventKind, before: _Known | None = None,
        after: _Known | None = None,
    ) -> None:  # fmt: skip
        before, after = before or _NOTHING, after or _NOTHING
        if oid not in self._numbers:  # NOT NULL, for example, is in no version
            table = self.state.table(oid)
            if table is None:
                return  # the transaction has created and dropped it, without rows
            self._add(lsn, table, doubt=self.state.doubt_of(oid))
        seq = self._seqs.get(lsn, 0)
        self._seqs[lsn] = seq + 1
        self.history.events.append(
            SchemaEvent(
                self._commit_lsn, lsn, kind, self._numbers[oid], seq,
                definition_json(before.definition, None, None),
                definition_json(after.definition, before.definition, after.table),
            )
        )  # fmt: skip

    def _ignore(self, oid: int) -> None:
        """The file of a relation without rows to show."""
        row = self.state.classes.get(oid)
        if row is not None and row.file:
            self.history.ignored[row.file] = self.state.name_of(row)


def _has_more_labels(known: Type, found: Type) -> bool:
    return replace(found, labels=known.labels) == known and (
        known.labels.items() <= found.labels.items()
    )
