"""Makes Arrow batches of changes. Prints the tuples of each table together, then sorts rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from quorum_wal.spark.changes.catalog import Catalog, Table
from quorum_wal.spark.changes.change_rows import NO_TABLE, UNDECODED, ChangeRows
from quorum_wal.spark.changes.change_schema import CHANGES_SCHEMA, Note, typed_schema
from quorum_wal.spark.changes.change_set import COMMIT
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.heap_fields import (
    BLOCK,
    DELETE,
    FLAGS,
    INSERT,
    LSN,
    MESSAGE,
    NEW_AT,
    NEW_LENGTH,
    OFFSET,
    OLD_AT,
    OLD_BLOCK,
    OLD_IS_KEY,
    OLD_LENGTH,
    OLD_OFFSET,
    OPERATION,
    PREFIX,
    SEQ,
    TRUNCATE,
    UPDATE,
)
from quorum_wal.spark.changes.logical_messages import NO_XID, message_json
from quorum_wal.spark.changes.table_versions import SCHEMA
from quorum_wal.spark.changes.toast_chunks import ToastChunks
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.spark.changes.tuple_cells import Cells, TableFormat, read_cells
from quorum_wal.spark.changes.tuple_columns import struct_of
from quorum_wal.spark.changes.tuple_print import PLACE_ROOM, print_places
from quorum_wal.spark.records.arrow_columns import printed_column
from quorum_wal.walrecords.record_index import Array

ROWS_PER_BATCH = 1 << 15

_NEW, _OLD = (NEW_AT, NEW_LENGTH), (OLD_AT, OLD_LENGTH)

_OPERATIONS = {
    UNDECODED: "unknown", INSERT: "insert", UPDATE: "update", DELETE: "delete",
    TRUNCATE: "truncate", SCHEMA: "schema", MESSAGE: "message",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Group:
    """The rows of one table in a batch, and their values of `new`, `old` and `key`."""

    rows: Array
    new: pa.Array
    old: pa.Array
    key: pa.Array


class ChangeBatches:
    """`only`: a table whose rows become typed columns. `datums_of`: the types that are valid for a
    table; by default those of the catalog. `is_compiled` False prints every value in Python; tests
    use it to compare both ways."""

    def __init__(
        self,
        catalog: Catalog,
        only: Table | None = None,
        *,
        datums_of: Callable[[int], Datums] | None = None,
        is_compiled: bool = True,
    ) -> None:
        self._tables = catalog.tables
        self._datums = Datums(catalog.types)
        self._datums_of = datums_of
        self._is_compiled = is_compiled
        self._formats: dict[int, TableFormat] = {}
        self.is_typed = only is not None
        self.schema = CHANGES_SCHEMA if only is None else typed_schema(only, self._datums)
        self._row_type: pa.DataType = self.schema.field("new").type
        self._row_columns = () if only is None else only.live_columns

    def build(
        self, rows: ChangeRows, data: Array, commits: Commits, toast: ToastChunks
    ) -> Iterator[pa.RecordBatch]:
        for begin in range(0, len(rows), ROWS_PER_BATCH):
            end = min(begin + ROWS_PER_BATCH, len(rows))
            yield _Batch(self, rows, begin, end, data, commits, toast).build()

    def note(self, kind: Note, lsn: int, detail: str) -> pa.RecordBatch:
        """A row without a transaction, with a note in `detail`. Its `seq` is its kind."""
        values = {
            "lsn": lsn,
            "seq": kind.value,
            "operation": _OPERATIONS[UNDECODED],
            "detail": detail,
        }
        columns = [pa.array([values.get(each.name)], each.type) for each in self.schema]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def format_of(self, number: int) -> TableFormat:
        if number not in self._formats:
            datums = self._datums_of(number) if self._datums_of else self._datums
            self._formats[number] = TableFormat.of(
                self._tables[number], datums, is_compiled=self._is_compiled
            )
        return self._formats[number]

    def table(self, number: int) -> Table:
        return self._tables[number]

    def row_array(self, cells: Cells) -> pa.Array:
        """The column `new` or `old`."""
        if self.is_typed:
            return struct_of(cells, self._row_columns, self._row_type)
        return cells.json(cells.format.live_columns)

    def no_rows(self, count: int) -> pa.Array:
        return pa.nulls(count, self._row_type)


@dataclass(slots=True)
class _Batch:
    """The rows [begin, end)."""

    batches: ChangeBatches
    rows: ChangeRows
    begin: int
    end: int
    data: Array
    commits: Commits
    toast: ToastChunks
    notes: dict[int, list[str]] = field(default_factory=dict)
    unchanged: dict[int, list[str]] = field(default_factory=dict)

    def build(self) -> pa.RecordBatch:
        changes = self.rows.changes[:, self.begin : self.end]
        table = self.rows.table[self.begin : self.end]
        for row in range(self.begin, self.end) if self.rows.notes else ():
            if row in self.rows.notes:
                self.notes.setdefault(row - self.begin, []).append(self.rows.notes[row])
        groups = [
            self._group(changes, int(number), np.flatnonzero(table == number))
            for number in np.unique(table)
        ]
        order = np.argsort(np.concatenate([group.rows for group in groups]), kind="stable")
        new, old, key = (
            _in_order([getattr(group, name) for group in groups], order)
            for name in ("new", "old", "key")
        )
        new, old = self._with_definitions(new, 0), self._with_definitions(old, 1)
        new = self._with_messages(new, changes)
        commit = changes[COMMIT]
        is_alone = self.commits.xid[commit] == NO_XID
        columns = [
            pa.array(changes[LSN]),
            pa.array(changes[SEQ].astype(np.int32)),
            pa.array(self.commits.lsn[commit]),
            pa.array(self.commits.time_us[commit], mask=is_alone).cast(
                pa.timestamp("us", tz="UTC")
            ),
            pa.array(self.commits.xid[commit], mask=is_alone),
            _names(changes[OPERATION], _OPERATIONS.get),
            _names(table, self._table_name("schema")),
            _names(table, self._table_name("name")),
            key,
            new,
            old,
            self._unchanged(),
            _ctid(changes),
            self._detail(),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.batches.schema)

    def _with_definitions(self, values: pa.Array, side: int) -> pa.Array:
        """Typed columns have no place for a definition."""
        if self.batches.is_typed or not self.rows.definitions:
            return values
        texts: list[str | None] = [None] * (self.end - self.begin)
        for row, definitions in self.rows.definitions.items():
            if self.begin <= row < self.end:
                texts[row - self.begin] = definitions[side]
        return pc.coalesce(pa.array(texts, values.type), values)

    def _with_messages(self, values: pa.Array, changes: Array) -> pa.Array:
        found = np.flatnonzero(changes[OPERATION] == MESSAGE).tolist()
        if not found:
            return values
        texts: list[str | None] = [None] * changes.shape[1]
        for row in found:
            at, length = int(changes[NEW_AT, row]), int(changes[NEW_LENGTH, row])
            texts[row] = message_json(
                int(changes[LSN, row]),
                self.data[at : at + length].tobytes(),
                int(changes[PREFIX, row]),
                is_transactional=bool(self.commits.xid[changes[COMMIT, row]] != NO_XID),
            )
        return pc.coalesce(pa.array(texts, values.type), values)

    def _table_name(self, attribute: str) -> Callable[[int], str | None]:
        def name(number: int) -> str | None:
            if number == NO_TABLE:
                return None
            return str(getattr(self.batches.table(number), attribute))

        return name

    def _group(self, changes: Array, number: int, rows: Array) -> _Group:
        nothing = self.batches.no_rows(len(rows))
        if number == NO_TABLE:
            return _Group(rows, nothing, nothing, pa.nulls(len(rows), pa.string()))
        form = self.batches.format_of(number)
        mine = changes if len(rows) == changes.shape[1] else changes[:, rows]
        decoded = mine[OPERATION] != UNDECODED
        has_new = np.flatnonzero((mine[NEW_LENGTH] > 0) & decoded)
        has_old = np.flatnonzero((mine[OLD_LENGTH] > 0) & decoded)
        return _Group(
            rows,
            self._new(form, mine, rows, has_new),
            self._old(form, mine, rows, has_old),
            self._keys(form, mine, has_new, has_old),
        )

    def _cells(
        self,
        form: TableFormat,
        mine: Array,
        chosen: Array,
        place: tuple[int, int],
        columns: Sequence[int],
        *,
        is_key: Array | None = None,
        is_typed: bool = False,
    ) -> Cells:
        at, length = place
        return read_cells(
            form, self.data, mine[at][chosen], mine[length][chosen], mine[COMMIT][chosen],
            self.toast, columns, is_key=is_key, is_typed=is_typed,
        )  # fmt: skip

    def _new(self, form: TableFormat, mine: Array, rows: Array, has_new: Array) -> pa.Array:
        is_typed = self.batches.is_typed
        cells = self._cells(form, mine, has_new, _NEW, form.live_columns, is_typed=is_typed)
        new = self.batches.row_array(cells)
        for place, names in cells.unchanged.items():
            if mine[OPERATION, has_new[place]] == INSERT:  # it writes all its values
                cells.notes.setdefault(place, []).extend(
                    f"column {name}: its out-of-line value is not in the WAL" for name in names
                )
            else:
                self.unchanged[int(rows[has_new[place]])] = names
        self._take_notes(cells, rows[has_new], "")
        return _spread(new, has_new, len(rows))

    def _old(self, form: TableFormat, mine: Array, rows: Array, has_old: Array) -> pa.Array:
        """The whole old row, or only the columns that identify it; then the others are unknown."""
        cells = self._cells(
            form, mine, has_old, _OLD, form.live_columns,
            is_key=mine[FLAGS, has_old] & OLD_IS_KEY != 0, is_typed=self.batches.is_typed,
        )  # fmt: skip
        old = self.batches.row_array(cells)
        self._take_notes(cells, rows[has_old], "old ")
        return _spread(old, has_old, len(rows))

    def _keys(self, form: TableFormat, mine: Array, has_new: Array, has_old: Array) -> pa.Array:
        """The keys of the new rows; for deletes, of the old rows."""
        count, key = mine.shape[1], form.table.key
        if not key:
            return pa.nulls(count, pa.string())
        new, old = (
            _spread(self._cells(form, mine, chosen, place, key).json(key), chosen, count)
            for chosen, place in ((has_new, _NEW), (has_old, _OLD))
        )
        is_deleted = mine[OPERATION] == DELETE
        return pc.if_else(pa.array(is_deleted), old, new) if is_deleted.any() else new

    def _take_notes(self, cells: Cells, rows: Array, prefix: str) -> None:
        for place, notes in cells.notes.items():
            mine = self.notes.setdefault(int(rows[place]), [])
            mine.extend(prefix + note for note in notes)

    def _unchanged(self) -> pa.Array:
        count, kind = self.end - self.begin, self.batches.schema.field("unchanged").type
        if not self.unchanged:
            return pa.nulls(count, kind)
        return pa.array([self.unchanged.get(row) for row in range(count)], kind)

    def _detail(self) -> pa.Array:
        details: list[str | None] = [None] * (self.end - self.begin)
        for row, notes in self.notes.items():
            details[row] = "; ".join(dict.fromkeys(notes))
        return pa.array(details, pa.string())


def _spread(values: pa.Array, rows: Array, count: int) -> pa.Array:
    """values[i] at rows[i], and null elsewhere."""
    if len(rows) == count:
        return values
    places = np.full(count, -1, np.int64)
    places[rows] = np.arange(len(rows))
    return values.take(pa.array(places, mask=places < 0))


def _in_order(parts: list[pa.Array], order: Array) -> pa.Array:
    joined = parts[0] if len(parts) == 1 else pa.concat_arrays(parts)
    return joined if len(parts) == 1 else joined.take(pa.array(order))


def _names(numbers: Array, name_of: Callable[[int], str | None]) -> pa.Array:
    found, places = np.unique(numbers, return_inverse=True)
    names = pa.array([name_of(int(number)) for number in found], pa.string())
    if len(found) == 1:
        return pa.repeat(names[0], len(numbers))
    return names.take(pa.array(places.astype(np.int64)))


def _ctid(changes: Array) -> pa.Array:
    """The place of the new row; for deletes, of the old row."""
    operation = changes[OPERATION]
    is_old = operation == DELETE
    has_place = is_old | (operation == INSERT) | (operation == UPDATE)
    block = np.where(is_old, changes[OLD_BLOCK], changes[BLOCK])
    line = np.where(is_old, changes[OLD_OFFSET], changes[OFFSET])
    offsets = np.empty(len(block) + 1, np.int32)
    texts = np.empty(PLACE_ROOM * len(block), np.uint8)
    print_places(block, line, has_place, texts, offsets)
    return printed_column(offsets, texts, pa.string(), has_place)
