"""The columns of decoded WAL: one row a record, in the terms of `pg_waldump`.

All are nullable, and lists have the item name `element`: Spark wants batches that equal what it
makes of its own schema. LSNs and transaction ids are bigint, since Spark has no unsigned numbers.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from spark.errors import ColumnError

#: `block_id` numbers the references of a record, as `blkref #0`; `fork` is main, fsm, vm or init;
#: `data_length` is that of the block's own data, its page image not counted
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
        #: where the record starts
        pa.field("lsn", pa.int64()),
        #: where the next one may, as Postgres counts: after an XLOG_SWITCH the next segment
        pa.field("end_lsn", pa.int64()),
        pa.field("prev_lsn", pa.int64()),
        #: Postgres's timeline
        pa.field("tli", pa.int32()),
        #: 0 if it was written outside of a transaction that has one
        pa.field("xid", pa.int64()),
        #: the top-level transaction, where the record says it, otherwise null: with wal_level
        #: logical the first record of a subtransaction does; COMMIT, PREPARE, COMMIT_PREPARED and
        #: ABORT_PREPARED do; an ABORT may be of a subtransaction, and does not tell
        pa.field("top_xid", pa.int64()),
        pa.field("rmgr", pa.string()),
        #: as `pg_waldump` of the server's version names it
        pa.field("operation", pa.string()),
        pa.field("record_length", pa.int64()),
        pa.field("main_data_length", pa.int64()),
        #: full-page images, as stored: without their holes, maybe compressed
        pa.field("fpi_count", pa.int32()),
        pa.field("fpi_bytes", pa.int64()),
        pa.field("blocks", pa.list_(pa.field("element", BLOCK))),
        #: of COMMIT, ABORT, PREPARE, COMMIT_PREPARED and ABORT_PREPARED; null for all others
        pa.field("xact_time", pa.timestamp("us", tz="UTC")),
        pa.field("subxids", pa.list_(pa.field("element", pa.int64()))),
        #: the name of a prepared transaction, where the record says it
        pa.field("gid", pa.string()),
        #: all of the record, its header included, page headers taken out
        pa.field("record", pa.binary()),
    ]
)

DEFAULT_COLUMNS = tuple(name for name in WAL_SCHEMA.names if name != "record")


def schema_of(columns: Iterable[str]) -> pa.Schema:
    """Of a batch with these columns, in this order. Raises ColumnError."""
    names = list(columns)
    for name in names:
        if name not in WAL_SCHEMA.names:
            raise ColumnError(
                f'unknown column "{name}"', hint=f"The columns are: {', '.join(WAL_SCHEMA.names)}."
            )
        if names.count(name) > 1:
            raise ColumnError(f'column "{name}" is named twice')
    return pa.schema([WAL_SCHEMA.field(name) for name in names])
