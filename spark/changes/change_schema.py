"""The columns of `pg_changes`, one row for each change of a row; and types of a table's columns.

All columns are nullable, as Spark requires. LSNs and transaction ids are bigint.
"""

from __future__ import annotations

from enum import Enum

import pyarrow as pa

from quorum_wal.spark.changes import datum
from quorum_wal.spark.changes.catalog import Column, Table
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.errors import CatalogError

_COMMIT_FIELDS = (
    #: the start of the record of the change
    pa.field("lsn", pa.int64()),
    #: the number of the change in its record; (commit_lsn, lsn, seq) is a total order
    pa.field("seq", pa.int32()),
    #: the start of the commit record of the transaction; of a message that is not transactional,
    #: its own start
    pa.field("commit_lsn", pa.int64()),
    pa.field("commit_time", pa.timestamp("us", tz="UTC")),
    #: the transaction; for changes of subtransactions, the top-level one
    pa.field("xid", pa.int64()),
    #: insert, update, delete, truncate, schema, message; unknown: `detail` says what could not be
    #: decoded
    pa.field("operation", pa.string()),
    pa.field("schema", pa.string()),
    pa.field("table", pa.string()),
    #: the primary key as JSON: before a delete, otherwise after the change
    pa.field("key", pa.string()),
)
_PLACE_FIELDS = (
    #: columns of `new` with out-of-line values that an update did not change: the values are not in
    #: the transaction's WAL, so `new` does not have them; null if there are none
    pa.field("unchanged", pa.list_(pa.field("element", pa.string()))),
    #: the position of the row after the change, or before a delete: (block,line)
    pa.field("ctid", pa.string()),
    #: what could not be decoded, and why; null if everything was decoded
    pa.field("detail", pa.string()),
)

#: `new` and `old` as row_to_json() prints them; `old` is what the WAL has: the row or the key
CHANGES_SCHEMA = pa.schema(
    [
        *_COMMIT_FIELDS,
        pa.field("new", pa.string()),
        pa.field("old", pa.string()),
        *_PLACE_FIELDS,
    ]
)


class Note(Enum):
    """What a row without a transaction reports about the WAL. The value is the row's `seq`, so rows
    with equal `lsn` and `seq` are equal. Several tasks may return the same row."""

    LOST_WAL = 0
    INCOMPLETE = 1
    NOT_SEARCHED = 2
    NOT_FOLLOWED = 3


_PRECISION_MAX = 38
#: of money: the digits of an int64
_MONEY_PRECISION = 19

_ARROW_TYPES = {
    datum.BOOL: pa.bool_(),
    datum.INT2: pa.int16(),
    datum.INT4: pa.int32(),
    datum.INT8: pa.int64(),
    datum.OID: pa.int64(),
    datum.FLOAT4: pa.float32(),
    datum.FLOAT8: pa.float64(),
    datum.DATE: pa.date32(),
    datum.TIMESTAMP: pa.timestamp("us"),
    datum.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    datum.BYTEA: pa.binary(),
}


def arrow_type(column: Column, datums: Datums) -> pa.DataType:
    """Other types are text: arrays, composite types and hstore as JSON, the rest as Postgres prints
    them."""
    base = datums.base_oid(column.type_oid)
    if base == datum.NUMERIC and column.type_oid == base and column.typmod >= 4:
        precision, scale = (column.typmod - 4) >> 16 & 0xFFFF, (column.typmod - 4) & 0x7FF
        if precision <= _PRECISION_MAX and scale <= precision:
            return pa.decimal128(precision, scale)
    if base == datum.MONEY and (decimals := datums.money_decimals()) is not None:
        return pa.decimal128(_MONEY_PRECISION, decimals)
    return _ARROW_TYPES.get(base, pa.string())


def row_type(table: Table, datums: Datums) -> pa.StructType:
    """The type of a table's rows: its columns in order, without dropped ones."""
    return pa.struct(
        [
            pa.field(column.name, arrow_type(column, datums))
            for column in table.columns
            if not column.is_dropped
        ]
    )


def typed_schema(table: Table, datums: Datums) -> pa.Schema:
    """`CHANGES_SCHEMA` with the table's own types in `new` and `old`. Raises CatalogError."""
    rows = row_type(table, datums)
    if rows.num_fields == 0:
        raise CatalogError(f"table {table} has no columns")
    return pa.schema(
        [*_COMMIT_FIELDS, pa.field("new", rows), pa.field("old", rows), *_PLACE_FIELDS]
    )
