"""`WalDecoder`: makes an Arrow batch from whole records, without an object for each record.

    RecordIndex --survey--> the rows, and the positions of their parts --gather--> columns

It builds only the requested columns. It refuses what `pgwal.block_ref` refuses, with the same
error. It does not know the source or the destination of the WAL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
from numba import njit

from quorum_wal.pgwal.block_ref import decode_body
from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.pgwal.lsn import Lsn, format_lsn
from quorum_wal.pgwal.record import HEADER, Record, RecordHeader
from quorum_wal.pgwal.rmgr import is_rmgr_id, rmgr_name
from quorum_wal.pgwal.versions import wal_version
from quorum_wal.spark.records.arrow_columns import (
    NameTable,
    bytes_column,
    name_column,
    number_column,
)
from quorum_wal.spark.records.block_columns import block_column, compressed_column
from quorum_wal.spark.records.transaction_columns import TRANSACTION_COLUMNS, transaction_column
from quorum_wal.spark.records.wal_filter import WalFilter, filter_tables
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS, schema_of
from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.loads import Bytes, Numbers
from quorum_wal.walrecords.operation import operation_name, operation_names
from quorum_wal.walrecords.pool_array import pool_array
from quorum_wal.walrecords.record_index import RecordIndex
from quorum_wal.walrecords.record_survey import BlockPlaces, RecordFacts, RecordSurveyor
from quorum_wal.walrecords.transaction import ENDS, read_ends

#: Arrow's offsets of lists and strings have 32 bits, and a row is not larger than its record
INDEX_BYTES_MAX = (1 << 31) - 1


class WalDecoder:
    """The columns are those of `wal_schema`, in any order. Raises ColumnError, FilterError,
    UnsupportedVersionError.

    Not for two threads at once, because it reuses its memory.
    """

    def __init__(
        self,
        version_major: int,
        columns: Sequence[str] = DEFAULT_COLUMNS,
        wal_filter: WalFilter = WalFilter(),  # noqa: B008
    ) -> None:
        self.schema = schema_of(columns)
        self._fields = [_Field(field.name, field.type) for field in self.schema]
        self._version = wal_version(version_major)
        self._surveyor = RecordSurveyor(self._version, filter_tables(wal_filter, version_major))
        self._passes_all = wal_filter == WalFilter()
        self._names = _name_tables(version_major)

    def decode(self, index: RecordIndex) -> pa.RecordBatch:
        """One row for each record that passes the filter. Raises WalFormatError at the first record
        with invalid content. A record that the rmgr filter drops is not checked.

        The index has at most INDEX_BYTES_MAX of records.
        """
        assert len(index.data) <= INDEX_BYTES_MAX
        rows = self._survey(index)
        columns = [self._column(field, rows) for field in self._fields]
        return pa.RecordBatch.from_arrays(columns, schema=self.schema)

    def _survey(self, index: RecordIndex) -> _Rows:
        facts, places, xact_rows, bad = self._surveyor.survey(index)
        if bad >= 0:
            raise self._explain(index, bad)
        if not self._passes_all:
            data, *each = index.data, index.at, index.start_lsn, index.end_lsn, index.tli
            index = RecordIndex(data, *(values[facts.record] for values in each))
        ends = np.empty((len(xact_rows), ENDS), np.int64)
        if not TRANSACTION_COLUMNS.isdisjoint(self.schema.names):
            end_count, bad = read_ends(
                index.data, index.at, facts.main_length, xact_rows,
                self._surveyor.xact_format, ends,
            )  # fmt: skip
            if bad >= 0:
                raise self._too_short(index, bad)
            ends = ends[:end_count]
        return _Rows(index, facts, places, ends)

    def _column(self, field: _Field, rows: _Rows) -> pa.Array:
        index, facts = rows.index, rows.facts
        match field.name:
            case "lsn":
                return number_column(index.start_lsn, field.type)
            case "end_lsn":
                return number_column(index.end_lsn, field.type)
            case "tli":
                return number_column(index.tli, field.type)
            case "rmgr" | "operation":
                return name_column(facts.operation, self._names[field.name])
            case "blocks":
                return block_column(index.data, rows.places, facts.block_offsets)
            case "fpi_compressed":
                return compressed_column(
                    index.data, rows.places, facts.block_offsets, self._surveyor.compression_mask
                )
            case "record":
                return _record_column(index, facts.length)
            case name if name in TRANSACTION_COLUMNS:
                return transaction_column(name, index.data, rows.ends, facts.top_xid)
            case name:
                return number_column(getattr(facts, _FACTS[name]), field.type)

    def _explain(self, index: RecordIndex, bad: int) -> WalFormatError:
        """The error of `pgwal` for the record at which the compiled loop stopped."""
        record = _record(index, bad)
        try:
            decode_body(record, self._version.major)
        except WalFormatError as error:
            return error
        raise AssertionError(f"the loop refused a valid record at {record.start_lsn}")

    def _too_short(self, index: RecordIndex, bad: int) -> WalFormatError:
        record = _record(index, bad)
        name = operation_name(record.rmgr_id, record.info, self._version.major)
        return WalFormatError(
            record.start_lsn,
            f"{name} is shorter than it says at {format_lsn(record.start_lsn)}",
        )


@dataclass(frozen=True, slots=True)
class _Field:
    """A field of the schema. Arrow would create a new object for each access."""

    name: str
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class _Rows:
    """The input of the columns. `index` and `facts` have one element for each row."""

    index: RecordIndex
    facts: RecordFacts
    places: BlockPlaces
    ends: Numbers


#: columns that the survey fills
_FACTS = {
    "prev_lsn": "prev_lsn",
    "xid": "xid",
    "record_length": "length",
    "main_data_length": "main_length",
    "fpi_count": "fpi_count",
    "fpi_bytes": "fpi_bytes",
}


def _record(index: RecordIndex, position: int) -> Record:
    at = int(index.at[position])
    length = int.from_bytes(index.data[at : at + 4].tobytes(), "little")
    data = index.data[at : at + length].tobytes()
    header = RecordHeader(*HEADER.unpack_from(data))
    return Record(
        start_lsn=Lsn(int(index.start_lsn[position])),
        end_lsn=Lsn(int(index.end_lsn[position])),
        total_length=header.total_length,
        prev_lsn=Lsn(header.prev_lsn),
        xid=header.xid,
        rmgr_id=header.rmgr_id,
        info=header.info,
        data=data,
    )


def _record_column(index: RecordIndex, lengths: Numbers) -> pa.Array:
    offsets = np.zeros(len(index) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    values = pool_array(int(offsets[-1]), np.uint8)
    _copy_records(index.data, index.at, offsets, values)
    return bytes_column(offsets, values, pa.binary())


@njit(cache=True, nogil=True)
def _copy_records(data: Bytes, at: Numbers, offsets: Numbers, values: Bytes) -> None:
    for i in range(len(at)):
        begin = np.int64(offsets[i])
        copy_bytes(values, begin, data, at[i], np.int64(offsets[i + 1]) - begin)


@cache
def _name_tables(version_major: int) -> dict[str, NameTable]:
    """Names for the columns rmgr and operation, by `rmgr_id << 4 | info >> 4`. Cached by version,
    because building them takes as long as decoding thousands of records."""
    version = wal_version(version_major)
    rmgrs = [
        rmgr_name(rmgr_id, version_major) if is_rmgr_id(rmgr_id, version) else ""
        for rmgr_id in range(256)
    ]
    return {
        "rmgr": NameTable.of([name for name in rmgrs for _ in range(16)]),
        "operation": NameTable.of(operation_names(version_major)),
    }
