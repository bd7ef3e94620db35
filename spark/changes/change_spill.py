"""`ChangeSpill`: the changes of some transactions in a temporary file, if memory is too small.

    piece | rows: one field of all of them after the other | tuples | notes as JSON |

A piece has consecutive changes of the WAL, sorted by their transactions. So the changes of some
transactions are one range of its rows and one range of its tuples. A field is stored in numbers of
the size that its greatest value needs. The file has no name and belongs to one process, so numbers
have the byte order of the machine.

Laws. Memory grows with the number of pieces, with the transactions in each, and with the chunks of
out-of-line values (28 bytes for a chunk of 2 kB), not with the changes. The order of the changes
of a transaction is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, pairwise
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numba import njit

from quorum_wal.spark.changes.change_set import (
    CODE,
    COMMIT,
    FIELDS,
    TUPLES_ROOM,
    Gathered,
)
from quorum_wal.spark.changes.heap_fields import (
    FLAGS,
    LSN,
    NEW_AT,
    NEW_LENGTH,
    OFFSET,
    OLD_AT,
    OLD_LENGTH,
    OLD_OFFSET,
    OPERATION,
)
from quorum_wal.spark.changes.spill_file import SpillFile
from quorum_wal.spark.changes.toast_chunks import ChunkIndex
from quorum_wal.walrecords.byte_copy import copy_bytes
from quorum_wal.walrecords.loads import Bytes, Numbers
from quorum_wal.walrecords.record_index import Array

#: of rows and tuples in memory before the first of them are written to the file
MEMORY_BYTES = 64 << 20

_ROW_BYTES = 8 * FIELDS

#: the stored numbers of each field; a transaction's number and other fields have 32 bits in the WAL
_KINDS: dict[int, np.dtype[Any]] = {
    LSN: np.dtype(np.int64), OPERATION: np.dtype(np.uint8), FLAGS: np.dtype(np.uint8),
    OFFSET: np.dtype(np.uint16), OLD_OFFSET: np.dtype(np.uint16), CODE: np.dtype(np.int32),
}  # fmt: skip
_STORED: list[np.dtype[Any]] = [_KINDS.get(field, np.dtype(np.uint32)) for field in range(FIELDS)]


@dataclass(frozen=True, slots=True)
class _Piece:
    """`rows[begins[i]:begins[i + 1]]` are of transaction `numbers[i]`, with the tuples
    `tuples[tuple_begins[i]:tuple_begins[i + 1]]`. Other numbers are offsets in the file."""

    numbers: Array
    begins: Array
    tuple_begins: Array
    rows_at: int
    tuples_at: int
    notes_at: int
    notes_length: int


class ChangeSpill:
    """`commits` is the number of transactions; `toast_oids` are the TOAST tables by table;
    `piece_bytes` are those of rows and tuples that are read at once."""

    def __init__(self, commits: int, toast_oids: Array, piece_bytes: int) -> None:
        assert piece_bytes > 0
        self._toast_oids = toast_oids
        self._piece_bytes = piece_bytes
        self._file = SpillFile()
        self._pieces: list[_Piece] = []
        self._chunks: list[ChunkIndex] = []
        #: of rows and tuples, by transaction
        self._sizes = np.zeros(commits, np.int64)

    def __enter__(self) -> ChangeSpill:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Deletes the file."""
        self._file.close()

    # ---- writing

    def put(self, gathered: Gathered) -> None:
        """Writes changes that follow all changes before. Raises SpillError."""
        ends = np.cumsum(_sizes(gathered.changes))
        begins = np.flatnonzero(np.diff((ends - 1) // self._piece_bytes)) + 1
        for begin, end in pairwise([0, *begins.tolist(), len(ends)]):
            if begin < end:
                self._put_piece(gathered, begin, end)

    def _put_piece(self, gathered: Gathered, begin: int, end: int) -> None:
        order = np.argsort(gathered.changes[COMMIT, begin:end], kind="stable") + begin
        rows = gathered.changes[:, order]
        tuples = np.empty(int(rows[NEW_LENGTH].sum() + rows[OLD_LENGTH].sum()), np.uint8)
        _pack_tuples(gathered.data, rows, tuples)
        noted = np.flatnonzero(np.isin(order, list(gathered.notes))) if gathered.notes else ()
        notes = msgspec.json.encode({int(row): gathered.notes[int(order[row])] for row in noted})
        numbers, begins = np.unique(rows[COMMIT], return_index=True)
        begins = np.append(begins, rows.shape[1])
        ends = np.append(0, np.cumsum(rows[NEW_LENGTH] + rows[OLD_LENGTH]))
        self._sizes += np.bincount(rows[COMMIT], _sizes(rows), len(self._sizes)).astype(np.int64)
        piece = _Piece(
            numbers, begins, ends[begins],
            rows_at=self._put_rows(rows),
            tuples_at=self._file.append(tuples.data),
            notes_at=self._file.append(notes),
            notes_length=len(notes),
        )  # fmt: skip
        self._pieces.append(piece)
        self._add_chunks(rows, tuples, piece.tuples_at)

    def _put_rows(self, rows: Array) -> int:
        """The offset of the first field."""
        at = self._file.end
        for field, kind in enumerate(_STORED):
            stored = rows[field].astype(kind)
            assert (stored == rows[field]).all(), f"field {field} has a number beyond {kind}"
            self._file.append(stored.data)
        return at

    def _add_chunks(self, rows: Array, tuples: Array, tuples_at: int) -> None:
        chunks = rows[:, (rows[CODE] >= 0) & (rows[CODE] & 1 == 1)]
        if chunks.shape[1]:
            data = np.append(tuples, np.zeros(TUPLES_ROOM, np.uint8))
            found = ChunkIndex.of(
                data, chunks[NEW_AT], chunks[NEW_LENGTH], chunks[COMMIT],
                self._toast_oids[chunks[CODE] // 2],
            )  # fmt: skip
            self._chunks.append(found.shifted(tuples_at))

    # ---- reading

    @property
    def is_empty(self) -> bool:
        return not self._pieces

    def groups(self) -> Iterator[range]:
        """All transactions, in order: as many as fit into a piece, at least one."""
        begin, size = 0, 0
        for number, added in enumerate(self._sizes.tolist()):
            if number > begin and size + added > self._piece_bytes:
                yield range(begin, number)
                begin, size = number, 0
            size += added
        yield range(begin, len(self._sizes))

    def is_large(self, numbers: range) -> bool:
        """Whether these transactions do not fit into a piece."""
        return bool(self._sizes[numbers.start : numbers.stop].sum() > self._piece_bytes)

    def pieces(self, numbers: range) -> Iterator[Gathered]:
        """The changes of these transactions, one piece after the other; empty ones are omitted."""
        for piece in self._pieces:
            found = self._read(piece, numbers)
            if found is not None:
                yield found

    def piece(self, numbers: range, place: int) -> Gathered:
        """One of `pieces`."""
        return next(islice(self.pieces(numbers), place, None))

    def whole(self, numbers: range) -> Gathered:
        """The changes of these transactions in one set."""
        return _joined(list(self.pieces(numbers)))

    def everything(self) -> Iterator[Gathered]:
        """All pieces."""
        return self.pieces(range(len(self._sizes)))

    def chunks(self) -> ChunkIndex:
        """The chunks of out-of-line values. Their offsets are those of `read`. Frees the
        parts, so call it once."""
        found = ChunkIndex.joined(self._chunks)
        self._chunks.clear()
        return found

    def read(self, at: int, length: int) -> bytes:
        """Raises SpillError."""
        return self._file.read(at, length)

    def _read(self, piece: _Piece, numbers: range) -> Gathered | None:
        first, last = np.searchsorted(piece.numbers, (numbers.start, numbers.stop)).tolist()
        if first == last:
            return None
        begin, end = int(piece.begins[first]), int(piece.begins[last])
        rows = self._rows(piece, begin, end)
        tuples_begin, tuples_end = piece.tuple_begins[[first, last]].tolist()
        length = tuples_end - tuples_begin
        data = np.empty(1 + length + TUPLES_ROOM, np.uint8)
        data[0], data[1 + length :] = 0, 0
        self._file.read_into(piece.tuples_at + tuples_begin, data[1 : 1 + length].data)
        rows[NEW_AT] += 1 - tuples_begin
        rows[OLD_AT] += 1 - tuples_begin
        stored = self.read(piece.notes_at, piece.notes_length)
        notes = msgspec.json.decode(stored, type=dict[int, str])
        return Gathered(
            rows, data, {row - begin: note for row, note in notes.items() if begin <= row < end}
        )

    def _rows(self, piece: _Piece, begin: int, end: int) -> Array:
        rows = np.empty((FIELDS, end - begin), np.int64)
        count, at = int(piece.begins[-1]), piece.rows_at
        for field, kind in enumerate(_STORED):
            stored = np.empty(end - begin, kind)
            self._file.read_into(at + begin * kind.itemsize, stored.data.cast("B"))
            rows[field], at = stored, at + count * kind.itemsize
        return rows


def _sizes(rows: Array) -> Array:
    """In bytes, of rows and their tuples."""
    sizes: Array = rows[NEW_LENGTH] + rows[OLD_LENGTH] + _ROW_BYTES
    return sizes


def _joined(parts: list[Gathered]) -> Gathered:
    count, length = 0, 0
    notes: dict[int, str] = {}
    for part in parts:
        part.changes[NEW_AT] += length
        part.changes[OLD_AT] += length
        notes.update({count + row: note for row, note in part.notes.items()})
        count += part.changes.shape[1]
        length += len(part.data) - 1 - TUPLES_ROOM
    tuples = [part.data[1:-TUPLES_ROOM] for part in parts]
    room = np.zeros(TUPLES_ROOM, np.uint8)
    nothing = np.empty((FIELDS, 0), np.int64)
    return Gathered(
        np.concatenate([nothing, *(part.changes for part in parts)], axis=1),
        np.concatenate([room[:1], *tuples, room]),
        notes,
    )


@njit(cache=True, nogil=True)
def _pack_tuples(data: Bytes, rows: Numbers, tuples: Bytes) -> None:
    """Copies the tuples of each row after those of the row before, and sets their offsets."""
    used = 0
    for row in range(rows.shape[1]):
        copy_bytes(tuples, used, data, rows[NEW_AT, row], rows[NEW_LENGTH, row])
        rows[NEW_AT, row] = used
        used += rows[NEW_LENGTH, row]
        copy_bytes(tuples, used, data, rows[OLD_AT, row], rows[OLD_LENGTH, row])
        rows[OLD_AT, row] = used
        used += rows[OLD_LENGTH, row]
