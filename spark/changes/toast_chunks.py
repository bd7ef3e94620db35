"""Out-of-line values, assembled from the chunks that the same transaction has written.

    chunk   | value id 4 | number 4 | varlena: up to 1996 bytes |     a tuple of the TOAST table

If an update does not change such a value, the transaction has only a pointer to it, and its WAL
does not have the value. Source: Postgres `toast_internals.c`, `heaptoast.c`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

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


class UnchangedToastError(DatumError):
    """An update did not change the value, so the transaction's WAL does not have it."""


class ToastChunks:
    """All chunks of some transactions: the tuple's offset in `data`, the transaction's number and
    the oid of the TOAST table. `is_whole` False: lost WAL may have had more chunks."""

    def __init__(
        self,
        data: Array,
        at: Array,
        length: Array,
        commit: Array,
        toast_oid: Array,
        *,
        is_whole: bool = True,
    ) -> None:
        self._data = data
        self._is_whole = is_whole
        values = lay_out(data, at, length, _COLUMNS)
        whole = (values.state == PLAIN).all(axis=0) & values.fits
        ids, numbers = (
            _u32(data, values.at[column][whole]) for column in range(2)
        )  # fmt: skip
        self._at, self._length = values.at[2][whole], values.length[2][whole]
        self._number = numbers
        self._commit, self._toast_oid = commit[whole], toast_oid[whole]
        order = np.lexsort((numbers, ids, self._toast_oid, self._commit))
        self._order = order
        self._groups: Mapping[tuple[int, int, int], tuple[int, int]] = self._group(ids, order)

    def _group(self, ids: Array, order: Array) -> dict[tuple[int, int, int], tuple[int, int]]:
        names = np.stack((self._commit[order], self._toast_oid[order], ids[order]))
        if names.shape[1] == 0:
            return {}
        begins = np.flatnonzero(np.any(names[:, 1:] != names[:, :-1], axis=0)) + 1
        bounds = [0, *begins.tolist(), names.shape[1]]
        return {
            (int(names[0, begin]), int(names[1, begin]), int(names[2, begin])): (begin, end)
            for begin, end in pairwise(bounds)
        }

    def fetch(self, pointer: bytes, commit: int) -> bytes:
        """The plain value. Raises UnchangedToastError, DatumError."""
        found = parse_pointer(pointer)
        bounds = self._groups.get((commit, found.toast_oid, found.value_id))
        if bounds is None and not self._is_whole:
            raise DatumError("its out-of-line value is not in the WAL, some of which is lost")
        if bounds is None:
            raise UnchangedToastError("the value is older than the transaction")
        rows = self._order[bounds[0] : bounds[1]]
        if (self._number[rows] != np.arange(len(rows))).any():
            raise DatumError(
                f"the chunks of out-of-line value {found.value_id} are not consecutive"
            )
        stored = b"".join(
            self._data[at : at + length].tobytes()
            for at, length in zip(self._at[rows], self._length[rows], strict=True)
        )
        if len(stored) != found.stored_length:
            raise DatumError(
                f"out-of-line value {found.value_id} has {len(stored)} bytes in the WAL, "
                f"expected {found.stored_length}"
            )
        return decompress_datum(stored) if found.is_compressed else stored


def _u32(data: Array, at: Array) -> Array:
    place = at[:, np.newaxis] + np.arange(4)
    numbers: Array = data[place].copy().view("<u4").reshape(-1).astype(np.int64)
    return numbers
