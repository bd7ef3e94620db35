"""What happens to rows that could not be decoded: they fail the query, are stored apart, or pass.

    fail          the first such row raises UndecodedChange; this is the default
    dead_letter   such rows are written to objects of a store and removed; all others pass
    pass          all rows pass; the consumer looks at `operation` and `detail`

    0000000001000028-0000000001A2B3C4-8b1f...90.json       one row a line; the range of the task
    {"lsn":16777384,"seq":0,...,"operation":"unknown",...,"detail":"2 changes of relation ..."}

Laws. A row is undecoded if `operation` is unknown or `detail` is not null; it is stored whole. Rows
are durable in the dead letter before the rows after them are returned. The key of an object depends
on the range and the content alone, so a repeated task writes no second object. All consumers of
`read_changes` get its rows through this module.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import Enum
from hashlib import sha256
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from quorum_wal.objectstore.errors import ObjectStoreError
from quorum_wal.objectstore.store import ObjectStore, open_store
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.errors import DeadLetterError, UndecodedChange
from quorum_wal.spark.inputs.wal_reader import WalRange

#: of an object's key; two objects of a range with equal digits have equal rows
_DIGEST_DIGITS = 32

_CHOICE = "on_unknown=dead_letter stores such rows apart, and on_unknown=pass returns them."
_HINTS = {
    Note.INCOMPLETE: "Begin at least 15 seconds later, with start_lsn or start_time, or provide "
    f"older WAL. {_CHOICE}",
}
_HINT = f"Take a new catalog with sk catalog snapshot, and name both: catalog=OLD,NEW. {_CHOICE}"

#: numeric values keep their digits, as in the text of row_to_json()
_JSON = msgspec.json.Encoder(decimal_format="number")


class OnUnknown(Enum):
    """What to do with rows that could not be decoded."""

    FAIL = "fail"
    DEAD_LETTER = "dead_letter"
    PASS = "pass"


@dataclass(frozen=True, slots=True)
class UndecodedPolicy:
    """Picklable. `dead_letter` is the URL of a store, only with DEAD_LETTER; `store_options` may
    have secrets."""

    on_unknown: OnUnknown = OnUnknown.FAIL
    dead_letter: str | None = None
    store_options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def apply(
        self, batches: Iterable[pa.RecordBatch], wal_range: WalRange
    ) -> Iterator[pa.RecordBatch]:
        """The rows to return, in batches of which none is empty.

        Raises UndecodedChange, DeadLetterError, and the errors of `batches`.
        """
        for batch in batches:
            is_undecoded = undecoded(batch)
            if self.on_unknown is OnUnknown.PASS or not pc.any(is_undecoded).as_py():
                yield batch
                continue
            rows = batch.filter(is_undecoded)
            if self.on_unknown is OnUnknown.FAIL:
                raise _error(rows)
            self._store(rows, wal_range)
            if rows.num_rows < batch.num_rows:
                yield batch.filter(pc.invert(is_undecoded))

    def _store(self, rows: pa.RecordBatch, wal_range: WalRange) -> None:
        assert self.dead_letter is not None
        try:
            store = open_store(self.dead_letter, dict(self.store_options))
            _write(store, rows, wal_range)
        except ObjectStoreError as error:
            raise DeadLetterError(
                f"{rows.num_rows} rows could not be written to dead letter {self.dead_letter}: "
                f"{error}",
                hint=error.hint,
            ) from error


def undecoded(rows: pa.RecordBatch) -> pa.BooleanArray:
    """Which rows could not be decoded, as a whole or in part."""
    return pc.or_(pc.equal(rows["operation"], "unknown"), pc.is_valid(rows["detail"]))


def _error(rows: pa.RecordBatch) -> UndecodedChange:
    """Names the first of these rows, and counts the others."""
    names = ("lsn", "seq", "xid", "schema", "table", "detail")
    lsn, seq, xid, schema, table, detail = (rows[name][0].as_py() for name in names)
    rest = f", and {rows.num_rows - 1} more rows" if rows.num_rows > 1 else ""
    of_table = f" of table {schema}.{table}" if table is not None else ""
    what = f"WAL at {format_lsn(lsn)}" if xid is None else f"change at {format_lsn(lsn)}{of_table}"
    text = f"{what} could not be decoded{rest}: {detail}"
    hint = _HINTS.get(Note(seq), _HINT) if xid is None else _HINT
    return UndecodedChange(" ".join(text.split()), hint=hint)


def _write(store: ObjectStore, rows: pa.RecordBatch, wal_range: WalRange) -> None:
    """Raises ObjectStoreError."""
    data = b"".join(_line(row) for row in rows.to_pylist())
    digest = sha256(data).hexdigest()[:_DIGEST_DIGITS]
    store.create(f"{wal_range.start_lsn:016X}-{wal_range.end_lsn:016X}-{digest}.json", data)


def _line(row: dict[str, Any]) -> bytes:
    """One row as JSON. `new` and `old` are texts of JSON, also those of typed columns."""
    for name in ("new", "old"):
        if isinstance(row[name], dict):
            row[name] = _JSON.encode(_plain(row[name])).decode()
    return _JSON.encode(_plain(row)) + b"\n"


def _plain(value: Any) -> Any:
    """A value that JSON has, as row_to_json() prints it."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return f"\\x{value.hex()}"
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
