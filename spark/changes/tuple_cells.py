"""`Cells`: the values of many tuples of one table, ready to be printed as JSON or as text.

    tuples --tuple_layout--> the position of each value --here--> values for the compiled loop
                                                         `------> other values, printed here

A value that cannot be read is omitted from its row, and `notes` says why.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit

from quorum_wal.spark.changes import datum, tuple_print
from quorum_wal.spark.changes.catalog import Column, Table
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.datum_jsonb import json_string
from quorum_wal.spark.changes.datum_reader import Reader
from quorum_wal.spark.changes.datum_varlena import DatumError, plain_varlena
from quorum_wal.spark.changes.toast_chunks import ToastChunks, UnchangedToastError
from quorum_wal.spark.changes.tuple_layout import (
    DAMAGED,
    EXTERNAL,
    MISSING,
    PACKED,
    PLAIN,
    Values,
    lay_out,
)
from quorum_wal.spark.changes.tuple_layout import NULL as LAID_NULL
from quorum_wal.spark.changes.tuple_print import (
    COPY,
    NULL,
    OMIT,
    PRINT,
    is_printable,
    print_rows,
    room_of,
)
from quorum_wal.spark.records.arrow_columns import printed_column
from quorum_wal.walrecords.loads import Bytes, Int, Numbers, lent
from quorum_wal.walrecords.record_index import Array

#: types that Arrow stores as Postgres does, except for the epoch
STORED = {
    datum.INT2: "<i2",
    datum.INT4: "<i4",
    datum.INT8: "<i8",
    datum.OID: "<u4",
    datum.FLOAT4: "<f4",
    datum.FLOAT8: "<f8",
    datum.BOOL: "?",
    datum.DATE: "<i4",
    datum.TIMESTAMP: "<i8",
    datum.TIMESTAMPTZ: "<i8",
}

_KINDS = {
    datum.INT2: tuple_print.INT2,
    datum.INT4: tuple_print.INT4,
    datum.INT8: tuple_print.INT8,
    datum.OID: tuple_print.OID,
    datum.BOOL: tuple_print.BOOL,
    datum.TEXT: tuple_print.TEXT,
    datum.BPCHAR: tuple_print.TEXT,
    datum.VARCHAR: tuple_print.TEXT,
    datum.XML: tuple_print.TEXT,
    datum.JSON: tuple_print.RAW,
    datum.DATE: tuple_print.DATE,
    datum.TIMESTAMP: tuple_print.TIMESTAMP,
    datum.TIMESTAMPTZ: tuple_print.TIMESTAMPTZ,
    datum.NUMERIC: tuple_print.NUMERIC,
    datum.UUID: tuple_print.UUID,
    datum.BYTEA: tuple_print.BYTEA,
    datum.FLOAT4: tuple_print.FLOAT4,
    datum.FLOAT8: tuple_print.FLOAT8,
}

#: kind of float: its storage type, and the limit below which neither Postgres nor Arrow prints an
#: exponent
_FLOATS = {tuple_print.FLOAT4: ("<f4", 1e6), tuple_print.FLOAT8: ("<f8", 1e10)}
_FLOAT_MIN = 1e-4


@dataclass(frozen=True, slots=True)
class TableFormat:
    """The facts of a table that every batch needs."""

    table: Table
    datums: Datums
    #: of each column; tests set NO_KIND for all, to compare with the compiled loop
    kinds: Array
    readers: tuple[Reader | None, ...]

    @classmethod
    def of(cls, table: Table, datums: Datums, *, is_compiled: bool = True) -> TableFormat:
        kinds = [
            _KINDS.get(datums.base_oid(column.type_oid), 0) if is_compiled else 0
            for column in table.columns
        ]
        readers = tuple(
            None if column.is_dropped else datums.reader(column.type_oid)
            for column in table.columns
        )
        return cls(table, datums, np.array(kinds, np.int64), readers)

    def base(self, number: int) -> int:
        """The type of a column, or the base type of its domain."""
        return self.datums.base_oid(self.table.columns[number].type_oid)

    @property
    def live_columns(self) -> tuple[int, ...]:
        return self.table.live_columns


@dataclass(slots=True)
class Cells:
    """Arrays of shape (columns, tuples). `at` is an offset in `data`, or for COPY in `texts`."""

    format: TableFormat
    data: Array
    state: Array
    at: Array
    length: Array
    texts: Array = field(default_factory=lambda: np.empty(0, np.uint8))
    #: tuple -> what could not be read of it
    notes: dict[int, list[str]] = field(default_factory=dict)
    #: tuple -> columns whose out-of-line values are older than the transaction
    unchanged: dict[int, list[str]] = field(default_factory=dict)
    #: texts are not JSON, and values of the types in STORED are not printed
    is_typed: bool = False

    def note(self, row: int, note: str) -> None:
        self.notes.setdefault(row, []).append(note)

    def missing(self, number: int) -> bytes:
        """The value of a column in tuples that are older than the column."""
        column, reader = self.format.table.columns[number], self.format.readers[number]
        assert column.missing is not None
        assert column.missing_json is not None
        base = self.format.base(number)
        if not self.is_typed or base == datum.BOOL or (reader is not None and reader.is_json):
            return column.missing_json.encode()
        if base == datum.BYTEA:
            return bytes.fromhex(column.missing[2:])
        return column.missing.encode()

    def json(self, columns: Sequence[int]) -> pa.Array:
        """One object for each tuple, with these columns."""
        chosen = np.array(columns, np.int64)
        names = [
            f"{json_string(self.format.table.columns[column].name)}:".encode() for column in columns
        ]
        name_at = np.cumsum([0, *map(len, names)])
        kinds, state = self.format.kinds[chosen], self.state[chosen]
        at, length = self.at[chosen], self.length[chosen]
        count = state.shape[1]
        name_lengths = np.diff(name_at)
        out = np.empty(room_of(kinds, name_lengths, state, length, 0, count), np.uint8)
        offsets = np.empty(count + 1, np.int32)
        print_rows(
            kinds, np.frombuffer(b"".join(names) or b"\0", np.uint8), name_at, self.data,
            self.texts, state, at, length, 0, count, out, offsets,
        )  # fmt: skip
        return printed_column(offsets, out, pa.string())


def read_cells(
    form: TableFormat,
    data: Array,
    at: Array,
    length: Array,
    commit: Array,
    toast: ToastChunks,
    columns: Sequence[int],
    *,
    is_key: Array | None = None,
    is_typed: bool = False,
) -> Cells:
    """The cells of the tuples data[at : at + length] in these columns. `commit` is the transaction
    number of each tuple. A tuple with `is_key` has the columns that identify the row, and NULL in
    the others."""
    values = lay_out(data, at, length, form.table.columns)
    state = np.full(values.state.shape, OMIT, np.uint8)
    cells = Cells(form, data, state, values.at, values.length, is_typed=is_typed)
    _CellReader(cells, values, commit, toast).read(columns)
    if is_key is not None:
        state[is_key & ((values.state == LAID_NULL) | (values.state == MISSING))] = OMIT
    return cells


class _CellReader:
    """Decides how each value is printed; the compiled loop decides about most of them at once."""

    def __init__(self, cells: Cells, values: Values, commit: Array, toast: ToastChunks) -> None:
        self._cells = cells
        self._values = values
        self._commit = commit
        self._toast = toast
        self._texts: list[bytes] = []
        self._texts_length = 0

    def read(self, columns: Sequence[int]) -> None:
        table = self._cells.format.table
        for row in np.flatnonzero(self._values.columns > len(table.columns)).tolist():
            self._cells.note(
                row,
                f"the row has {self._values.columns[row]} columns, but the catalog has "
                f"{len(table.columns)} for table {table}: take a new catalog",
            )
        for number in columns:
            if not table.columns[number].is_dropped:
                self._read_column(number, table.columns[number])
        self._omit_misfits()
        if self._texts:
            self._cells.texts = np.frombuffer(b"".join(self._texts), np.uint8)

    def _omit_misfits(self) -> None:
        """The values of a tuple that does not fit may be those of other columns."""
        table = self._cells.format.table
        for row in np.flatnonzero(~self._values.fits).tolist():
            self._cells.state[:, row] = OMIT
            self._cells.unchanged.pop(row, None)
            self._cells.notes[row] = [
                f"the row does not have the columns of table {table}: take a new catalog, or the "
                "row is damaged"
            ]

    def _read_column(self, number: int, column: Column) -> None:
        cells, found = self._cells, self._values.state[number]
        kind, state = int(cells.format.kinds[number]), cells.state[number]
        if cells.is_typed and cells.format.base(number) in STORED:
            kind = tuple_print.INT8  # all bit patterns are valid
        at, length = self._values.at[number], self._values.length[number]
        _decide(kind, cells.data, found, at, length, state)
        if kind in _FLOATS:
            self._copy_floats(number, np.flatnonzero((state == OMIT) & (found == PLAIN)))
        missing = np.flatnonzero(found == MISSING)
        if len(missing) and column.missing_json is not None:
            self._copy(number, missing, cells.missing(number))
        reader = cells.format.readers[number]
        undecoded = reader.undecoded if reader is not None else ""
        for row in np.flatnonzero(state == OMIT).tolist():
            try:
                text = self._print(number, row)
            except UnchangedToastError:
                cells.unchanged.setdefault(row, []).append(column.name)
            except (ValueError, IndexError, RecursionError, struct.error) as error:
                cells.note(row, f"column {column.name}: {error}")
            else:
                self._copy(number, row, text)
                if undecoded:
                    cells.note(row, f"column {column.name}: stored bytes, because {undecoded}")

    def _print(self, number: int, row: int) -> bytes:
        """Raises UnchangedToastError, ValueError, IndexError, RecursionError, struct.error."""
        form = self._cells.format
        reader = form.readers[number]
        assert reader is not None, "a dropped column is not printed"
        value = self._plain(number, row)
        if self._cells.is_typed and form.base(number) == datum.BYTEA:
            return value
        return (reader.typed(value) if self._cells.is_typed else reader.json(value)).encode()

    def _plain(self, number: int, row: int) -> bytes:
        found = self._values.state[number, row]
        if found == DAMAGED:
            raise DatumError("the row ends before the value")
        at, length = int(self._values.at[number, row]), int(self._values.length[number, row])
        value: bytes = self._cells.data[at : at + length].tobytes()
        if found == EXTERNAL:
            return self._toast.fetch(value, int(self._commit[row]))
        return plain_varlena(value) if found == PACKED else value

    def _copy_floats(self, number: int, rows: Array) -> None:
        """Prints the floats without an exponent: Arrow also finds the shortest text."""
        cells = self._cells
        stored, exponent_from = _FLOATS[int(cells.format.kinds[number])]
        size = np.dtype(stored).itemsize
        values = cells.data[cells.at[number, rows, np.newaxis] + np.arange(size)].view(stored)[:, 0]
        is_fixed = (np.abs(values) >= _FLOAT_MIN) & (np.abs(values) < exponent_from)
        is_fixed |= values == 0
        rows = rows[is_fixed]
        texts = pa.array(values[is_fixed]).cast(pa.string())
        texts = pc.replace_substring_regex(texts, r"\.0$", "")
        _, offsets, printed = texts.buffers()
        ends = np.frombuffer(offsets, np.int32, len(rows) + 1).astype(np.int64)
        cells.state[number, rows] = COPY
        cells.at[number, rows] = self._texts_length + ends[:-1]
        cells.length[number, rows] = np.diff(ends)
        self._texts.append(printed.to_pybytes() if printed is not None else b"")
        self._texts_length += len(self._texts[-1])

    def _copy(self, number: int, rows: int | Array, text: bytes) -> None:
        cells = self._cells
        cells.state[number, rows] = COPY
        cells.at[number, rows], cells.length[number, rows] = self._texts_length, len(text)
        self._texts.append(text)
        self._texts_length += len(text)


@njit(cache=True, nogil=True)
def _decide(
    kind: Int, data: Bytes, found: Numbers, at: Numbers, length: Numbers, state: Numbers
) -> None:
    """Sets NULL or PRINT; OMIT remains for values that need a closer look."""
    data = lent(data)
    for i in range(len(found)):
        if found[i] == LAID_NULL or found[i] == MISSING:
            state[i] = NULL
        elif found[i] == PLAIN and is_printable(kind, data, at[i], length[i]):
            state[i] = PRINT
