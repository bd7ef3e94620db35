"""Changes that are removed or summarized, where a server cannot be made to write them at will."""

from __future__ import annotations

from typing import Any

import numpy as np

from quorum_wal.spark.changes.catalog import Catalog, Column, Table
from quorum_wal.spark.changes.change_files import UNKNOWN
from quorum_wal.spark.changes.change_rows import UNDECODED, arrange
from quorum_wal.spark.changes.change_set import CODE, COMMIT, FIELDS, Gathered
from quorum_wal.spark.changes.heap_fields import (
    BLOCK,
    DELETE,
    FLAGS,
    INSERT,
    IS_SUPER,
    LSN,
    NEW_LENGTH,
    OFFSET,
    OLD_BLOCK,
    OLD_LENGTH,
    OLD_OFFSET,
    OPERATION,
    RELFILENODE,
    UPDATE,
)

FILE = 16384


def catalog() -> Catalog:
    column = Column("a", 23, -1, 4, 4, True, False, None, None)
    return Catalog(
        system_id=1,
        version_major=16,
        database_oid=5,
        database_name="shop",
        lsn=1,
        wal_level="logical",
        tables=[Table(FILE, FILE, "public", "t", 0, 0, (0,), (column,))],
        types=[],
        ignored={},
    )


def gathered(*rows: dict[int, Any]) -> Gathered:
    changes = np.zeros((FIELDS, len(rows)), np.int64)
    for place, row in enumerate(rows):
        defaults = {LSN: 100 + place, RELFILENODE: FILE, NEW_LENGTH: 10, OLD_LENGTH: 10}
        for name, value in {**defaults, **row}.items():
            changes[name, place] = value
    return Gathered(changes, np.zeros(1, np.uint8), {})


def test_a_cancelled_speculative_insertion() -> None:
    """The row may be inserted at the same place again: only the insertion before is removed."""
    place, old_place = {BLOCK: 3, OFFSET: 7}, {OLD_BLOCK: 3, OLD_OFFSET: 7}
    found = arrange(
        gathered(
            {OPERATION: INSERT, BLOCK: 3, OFFSET: 6},
            {OPERATION: INSERT, **place},
            {OPERATION: DELETE, FLAGS: IS_SUPER, **old_place},
            {OPERATION: INSERT, **place},
            {OPERATION: DELETE, **old_place},
        ),
        catalog(),
    )
    assert found.changes[LSN].tolist() == [100, 103, 104]
    assert found.notes == {}


def test_the_order_is_by_commits_and_then_by_lsns() -> None:
    found = arrange(
        gathered(
            {OPERATION: INSERT, COMMIT: 1},
            {OPERATION: INSERT, COMMIT: 0},
            {OPERATION: UPDATE, COMMIT: 1},
            {OPERATION: DELETE, COMMIT: 0},
        ),
        catalog(),
    )
    assert found.changes[LSN].tolist() == [101, 103, 100, 102]


def test_an_unknown_file_is_one_row_per_transaction() -> None:
    unknown = {CODE: UNKNOWN, RELFILENODE: 17000, OPERATION: INSERT}
    found = arrange(
        gathered({**unknown}, {**unknown}, {**unknown, COMMIT: 1}, {OPERATION: INSERT}), catalog()
    )
    assert found.changes[LSN].tolist() == [100, 103, 102]
    assert found.changes[OPERATION].tolist() == [UNDECODED, INSERT, UNDECODED]
    assert found.table.tolist() == [-1, 0, -1]
    assert found.notes[0].startswith("2 changes of relation 5/17000, which the catalog does not")
    assert found.notes[2].startswith("1 changes of relation 5/17000")


def test_missing_rows_are_reported() -> None:
    found = arrange(
        gathered(
            {OPERATION: UPDATE, NEW_LENGTH: 0},
            {OPERATION: DELETE, OLD_LENGTH: 0},
        ),
        catalog(),
    )
    assert found.changes[OPERATION].tolist() == [UNDECODED, DELETE]
    assert found.notes == {
        0: "update: the record has no row",
        1: "the deleted row is not in the WAL",
    }
