"""`HeapFollower`: completes the tuples of one scan from the pages that the WAL has shown.

    insert, update  -->  the new tuple, whole        update, delete  -->  the old tuple

An update record may have only the difference from the old tuple, a delete record has only its
position, and a record with a page image may have no tuple at all. Rows must be followed in the
order of the WAL.
"""

from __future__ import annotations

from quorum_wal.pgwal.errors import WalFormatError
from quorum_wal.spark.changes.datum_varlena import DatumError
from quorum_wal.spark.changes.heap_fields import (
    BLOCK,
    DELETE,
    FLAGS,
    HAS_IMAGE,
    HAS_OLD_IMAGE,
    INSERT,
    NEW_AT,
    NEW_LENGTH,
    OFFSET,
    OLD_BLOCK,
    OLD_OFFSET,
    OPERATION,
    PAGE_IMAGE,
    PREFIX,
    RECORD,
    RELFILENODE,
    SUFFIX,
    UPDATE,
)
from quorum_wal.spark.changes.heap_page import joined_tuple
from quorum_wal.spark.changes.heap_pages import HeapPages
from quorum_wal.spark.changes.heap_scan import HeapScan

NO_TUPLE = "the row is not in the record, and its page has not been seen before"


class HeapFollower:
    """Follows the changes of one scan."""

    def __init__(self, scan: HeapScan, pages: HeapPages) -> None:
        self._scan = scan
        self._pages = pages
        self._last_record = -1

    def follow(self, row: int) -> tuple[bytes | str, bytes | None]:
        """(the new tuple, or b"" if the operation has none, or what is wrong; the old tuple, or
        None if it is unknown)."""
        change = dict(enumerate(self._scan.changes[:, row].tolist()))
        file, operation = change[RELFILENODE], change[OPERATION]
        try:
            old = None
            if operation in (UPDATE, DELETE):
                old = self._pages.get(file, change[OLD_BLOCK], change[OLD_OFFSET])
            if operation == PAGE_IMAGE or change[FLAGS] & (HAS_IMAGE | HAS_OLD_IMAGE):
                self._take_images(change[RECORD])
            if operation in (UPDATE, DELETE) and old is None:
                old = self._pages.get(file, change[OLD_BLOCK], change[OLD_OFFSET])
            if operation not in (INSERT, UPDATE):
                return b"", old
            new = self._new_tuple(change, old)
        except (DatumError, WalFormatError) as error:
            return str(error), None
        if new is None:
            return NO_TUPLE, old
        self._pages.put(file, change[BLOCK], change[OFFSET], new)
        return new, old

    def _new_tuple(self, change: dict[int, int], old: bytes | None) -> bytes | None:
        at, length = change[NEW_AT], change[NEW_LENGTH]
        if length == 0:
            return self._pages.get(change[RELFILENODE], change[BLOCK], change[OFFSET])
        stored: bytes = self._scan.index.data[at : at + length].tobytes()
        if not change[PREFIX] and not change[SUFFIX]:
            return stored
        return None if old is None else joined_tuple(stored, old, change[PREFIX], change[SUFFIX])

    def _take_images(self, record: int) -> None:
        """Takes the images of a record once, however many tuples it has."""
        if record == self._last_record:
            return
        self._last_record = record
        for block in self._scan.body(record).blocks:
            if block.image is not None and block.image.is_applied and block.fork == 0:
                self._pages.put_image(block.relation.number, block.block_number, block.image)
