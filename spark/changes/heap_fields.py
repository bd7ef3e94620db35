"""The fields of `HeapScan.changes` and `HeapScan.marks`, and the values of those that are codes.

Both are arrays of numbers, because compiled loops fill them: a field is a row of the array, and a
change or a mark is a column.
"""

from __future__ import annotations

import numpy as np

from quorum_wal.walrecords.record_index import Array

#: rows of `HeapScan.changes`
(
    LSN, XID, OPERATION, DATABASE, RELFILENODE, BLOCK, OFFSET, OLD_BLOCK, OLD_OFFSET,
    FLAGS, NEW_AT, NEW_LENGTH, OLD_AT, OLD_LENGTH, PREFIX, SUFFIX, RECORD, SEQ, CHANGE_FIELDS,
) = range(19)  # fmt: skip

#: operations of changes; MESSAGE: see `logical_messages.py`
(
    INSERT, UPDATE, DELETE, TRUNCATE, CREATE_FILE, NEW_PAGE, PAGE_IMAGE, DAMAGED, DROP_FILE,
    EMPTY_FILE, MESSAGE,
) = range(1, 12)  # fmt: skip

#: flags of changes
OLD_IS_KEY = 1  #: the old tuple has only the columns that identify the row
HAS_IMAGE = 2  #: the record has the image of the new tuple's page
HAS_OLD_IMAGE = 4  #: the record has the image of the old tuple's page
IS_LOGICAL = 8  #: written for logical decoding
IS_SUPER = 16  #: cancels a speculative insertion
IS_HOT = 32

#: rows of `HeapScan.marks`: ends of transactions, and records that list open ones, in order
(
    MARK_LSN, MARK_XID, MARK_KIND, MARK_TIME_US, SUBXIDS_AT, SUBXIDS, INVALIDATIONS_AT,
    INVALIDATIONS, DROPPED_AT, DROPPED, MARK_RECORD, MARK_FIELDS,
) = range(12)  # fmt: skip

#: kinds of marks
(
    COMMIT, COMMIT_PREPARED, ABORT, RUNNING_XACTS, CHECKPOINT_SHUTDOWN, CHECKPOINT_ONLINE,
    MARK_KINDS,
) = range(1, 8)  # fmt: skip


def marks_of(marks: Array, kinds: tuple[int, ...]) -> Array:
    """The marks of these kinds. For few marks it takes a fifth of the time of `np.isin`."""
    is_wanted = np.zeros(MARK_KINDS, np.bool_)
    is_wanted[list(kinds)] = True
    found: Array = marks[:, is_wanted[marks[MARK_KIND]]]
    return found
