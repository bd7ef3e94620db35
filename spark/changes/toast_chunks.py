"""Out-of-line values, assembled from the chunks that the same transaction has written.

    chunk   | value id 4 | number 4 | varlena: up to 1996 bytes |     a tuple of the TOAST table

If an update does not change such a value, the transaction has only a pointer to it, and its WAL
does not have the value. Source: Postgres `toast_internals.c`, `heaptoast.c`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from quorum_wal.spark.changes.catalog import Column
from quorum_wal.spark.changes.datum_varlena import DatumError, decompress_datum, parse_pointer
from quorum_wal.spark.changes.tuple_layout import PLAIN, lay_out
from quorum_wal.walrecords.record_index import Array

_COLUMNS = tuple(
    Column(name, type_oid, -1, length, 4, length > 0, False, None, None)
    for name, type_oid, length in (
        ("chunk_id", 26, 4),
        ("chunk_seq", 23, 4),
        ("chunk_data", 17, -1),
    )
)

_ID_BITS = 32


class UnchangedToastError(DatumError):
    """An update did not change the value, so the transaction's WAL does not have it."""


@dataclass(frozen=True, slots=True)
class ChunkIndex:
    """Where chunks are: arrays of equal length, in the order of the WAL."""

    commit: Array  # int32, the number of the transaction
    value: Array  # uint64, the oid of the TOAST table, then the id of the value
    number: Array  # int32, of the chunk in its value
    at: Array  # int64
    length: Array  # int32

    @classmethod
    def of(cls, data: Array, at: Array, length: Array, commit: Array, oid: Array) -> ChunkIndex:
        """`at` are the tuples' offsets in `data`, `oid` those of the TOAST tables. Tuples that are
        not chunks are omitted."""
        found = lay_out(data, at, length, _COLUMNS)
        whole = (found.state == PLAIN).all(axis=0) & found.fits
        ids, numbers = (_u32(data, found.at[column][whole]) for column in range(2))
        return cls(
            commit[whole].astype(np.int32),
            (oid[whole] << _ID_BITS | ids).astype(np.uint64),
            numbers.astype(np.int32),
            found.at[2][whole],
            found.length[2][whole].astype(np.int32),
        )

    @classmethod
    def joined(cls, parts: Sequence[ChunkIndex]) -> ChunkIndex:
        kinds = (
            ("commit", np.int32), ("value", np.uint64), ("number", np.int32), ("at", np.int64),
            ("length", np.int32),
        )  # fmt: skip
        return cls(
            *(
                np.concatenate([np.empty(0, kind), *(getattr(part, name) for part in parts)])
                for name, kind in kinds
            )
        )

    def shifted(self, offset: int) -> ChunkIndex:
        return replace(self, at=self.at + offset)

    def ordered(self) -> ChunkIndex:
        """By transaction, value and number."""
        order = np.lexsort((self.number, self.value, self.commit))
        return ChunkIndex(
            self.commit[order],
            self.value[order],
            self.number[order],
            self.at[order],
            self.length[order],
        )

    def rows_of(self, commit: int, value: int) -> range:
        """The chunks of a value; the index must be ordered."""
        begin, end = np.searchsorted(self.commit, (commit, commit + 1)).tolist()
        values = self.value[begin:end]
        first, last = (
            int(np.searchsorted(values, np.uint64(value), side)) for side in ("left", "right")
        )
        return range(begin + first, begin + last)


class ToastChunks:
    """All chunks of some transactions. `read` returns the bytes at an offset of the index.
    `is_whole` False: lost WAL may have had more chunks."""

    def __init__(
        self, index: ChunkIndex, read: Callable[[int, int], bytes], *, is_whole: bool = True
    ) -> None:
        self._index = index.ordered()
        self._read = read
        self._is_whole = is_whole

    def fetch(self, pointer: bytes, commit: int) -> bytes:
        """The plain value. Raises UnchangedToastError, DatumError, SpillError."""
        found, index = parse_pointer(pointer), self._index
        rows = index.rows_of(commit, found.toast_oid << _ID_BITS | found.value_id)
        if not rows and not self._is_whole:
            raise DatumError("its out-of-line value is not in the WAL, some of which is lost")
        if not rows:
            raise UnchangedToastError("the value is older than the transaction")
        chosen = slice(rows.start, rows.stop)
        if (index.number[chosen] != np.arange(len(rows))).any():
            raise DatumError(
                f"the chunks of out-of-line value {found.value_id} are not consecutive"
            )
        stored = b"".join(
            self._read(at, length)
            for at, length in zip(
                index.at[chosen].tolist(), index.length[chosen].tolist(), strict=True
            )
        )
        if len(stored) != found.stored_length:
            raise DatumError(
                f"out-of-line value {found.value_id} has {len(stored)} bytes in the WAL, "
                f"expected {found.stored_length}"
            )
        return decompress_datum(stored) if found.is_compressed else stored


def bytes_of(data: Array) -> Callable[[int, int], bytes]:
    """Reads from an array in memory."""

    def read(at: int, length: int) -> bytes:
        part: bytes = data[at : at + length].tobytes()
        return part

    return read


def _u32(data: Array, at: Array) -> Array:
    place = at[:, np.newaxis] + np.arange(4)
    numbers: Array = data[place].copy().view("<u4").reshape(-1).astype(np.int64)
    return numbers
