"""The columns of decoded WAL, one row for each record, with the terms of `pg_waldump`.

All columns are nullable, and list items are named `element`, because batches must match the schema
that Spark derives. LSNs and transaction ids are bigint, because Spark has no unsigned numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from quorum_wal.spark.errors import ColumnError

#: `block_id` is the number of the reference, as in `blkref #0`; `fork` is main, fsm, vm or init;
#: `data_length` is the length of the block's own data, without its page image
BLOCK = pa.struct(
    [
        pa.field("block_id", pa.int32()),
        pa.field("tablespace", pa.int64()),
        pa.field("database", pa.int64()),
        pa.field("relfilenode", pa.int64()),
        pa.field("fork", pa.string()),
        pa.field("block", pa.int64()),
        pa.field("has_image", pa.bool_()),
        pa.field("will_init", pa.bool_()),
        pa.field("data_length", pa.int32()),
    ]
)

WAL_SCHEMA = pa.schema(
    [
        #: the start of the record
        pa.field("lsn", pa.int64()),
        #: the start of the next record, as Postgres counts: after an XLOG_SWITCH the next segment
        pa.field("end_lsn", pa.int64()),
        pa.field("prev_lsn", pa.int64()),
        #: Postgres's timeline
        pa.field("tli", pa.int32()),
        #: 0 if the record was written outside of a transaction with an xid
        pa.field("xid", pa.int64()),
        #: the top-level transaction if the record has it, otherwise null. COMMIT, PREPARE,
        #: COMMIT_PREPARED and ABORT_PREPARED have it; with wal_level = logical also the first
        #: record of a subtransaction. An ABORT may be of a subtransaction, and does not have it
        pa.field("top_xid", pa.int64()),
        pa.field("rmgr", pa.string()),
        #: the name in `pg_waldump` of the server's version
        pa.field("operation", pa.string()),
        pa.field("record_length", pa.int64()),
        pa.field("main_data_length", pa.int64()),
        #: full-page images as stored: without their holes, possibly compressed
        pa.field("fpi_count", pa.int32()),
        pa.field("fpi_bytes", pa.int64()),
        pa.field("blocks", pa.list_(pa.field("element", BLOCK))),
        #: of COMMIT, ABORT, PREPARE, COMMIT_PREPARED and ABORT_PREPARED; null for all others
        pa.field("xact_time", pa.timestamp("us", tz="UTC")),
        pa.field("subxids", pa.list_(pa.field("element", pa.int64()))),
        #: the name of a prepared transaction if the record has it
        pa.field("gid", pa.string()),
        #: how many of the full-page images are compressed
        pa.field("fpi_compressed", pa.int32()),
        #: the whole record with its header, without page headers
        pa.field("record", pa.binary()),
    ]
)

#: Columns that a query must name. A lake has one set of columns for ever, so a column that is added
#: to the schema is not added to the columns of a lake.
NAMED_COLUMNS = ("fpi_compressed", "record")
DEFAULT_COLUMNS = tuple(name for name in WAL_SCHEMA.names if name not in NAMED_COLUMNS)


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """The schema of a batch with these columns, in this order. Raises ColumnError."""
    names = list(columns)
    for name in names:
        if name not in WAL_SCHEMA.names:
            raise ColumnError(
                f'unknown column "{name}"', hint=f"The columns are: {', '.join(WAL_SCHEMA.names)}."
            )
        if names.count(name) > 1:
            raise ColumnError(f'column "{name}" is named twice')
    return pa.schema([WAL_SCHEMA.field(name) for name in names])
