"""Changes that are arranged in pieces from a temporary file, against the same ones as a whole."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from quorum_wal.spark.changes import spill_file
from quorum_wal.spark.changes.arranged_changes import ChangeArranger
from quorum_wal.spark.changes.catalog import Catalog, Column, Table
from quorum_wal.spark.changes.change_files import IGNORED, UNKNOWN
from quorum_wal.spark.changes.change_rows import ChangeRows
from quorum_wal.spark.changes.change_set import CODE, COMMIT, FIELDS, OID, TUPLES_ROOM, Gathered
from quorum_wal.spark.changes.change_spill import ChangeSpill
from quorum_wal.spark.changes.heap_fields import (
    CREATE_FILE,
    DAMAGED,
    DELETE,
    DROP_FILE,
    EMPTY_FILE,
    FLAGS,
    INSERT,
    IS_SUPER,
    LSN,
    MESSAGE,
    NEW_AT,
    NEW_LENGTH,
    NEW_PAGE,
    OFFSET,
    OLD_AT,
    OLD_LENGTH,
    OLD_OFFSET,
    OPERATION,
    RELFILENODE,
    SEQ,
    TRUNCATE,
    UPDATE,
)
from quorum_wal.spark.changes.schema_history import SchemaHistory
from quorum_wal.spark.changes.table_versions import TableVersions
from quorum_wal.spark.changes.transaction_commits import Commits
from quorum_wal.spark.errors import SpillError
from quorum_wal.walrecords.record_index import Array

#: oid, file
TABLES = ((20000, 30000), (20001, 30001), (20002, 20002))
COMMITS, ROWS, ROUNDS = 5, 150, 15
_RARE = (TRUNCATE, CREATE_FILE, NEW_PAGE, DROP_FILE, EMPTY_FILE, DAMAGED, MESSAGE)


@pytest.fixture
def rng() -> random.Random:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    return random.Random(seed)


def catalog(wal_level: str) -> Catalog:
    column = Column("a", 23, -1, 4, 4, True, False, None, None)
    tables = [Table(oid, file, "public", "t", 0, 0, (0,), (column,)) for oid, file in TABLES]
    return Catalog(
        system_id=1,
        version_major=16,
        database_oid=5,
        database_name="shop",
        lsn=1,
        wal_level=wal_level,
        tables=tables,
        types=[],
        ignored={},
    )


def random_change(rng: random.Random, row: int, rare: int) -> dict[int, int]:
    """One transaction has most changes; rare operations are more or less rare."""
    number = rng.randrange(-1, len(TABLES))
    change = {
        LSN: 100 + row,
        SEQ: row % 3,
        COMMIT: rng.choice([0, 0, 0, 0, *range(COMMITS)]),
        CODE: UNKNOWN if number < 0 else 2 * number,
        RELFILENODE: rng.choice((40000, 40001)) if number < 0 else TABLES[number][1],
        OPERATION: rng.choice((INSERT, INSERT, UPDATE, DELETE)),
        OFFSET: rng.randrange(4),
        OLD_OFFSET: rng.randrange(4),
        NEW_LENGTH: rng.choice((0, 5, 10, 40)),
        OLD_LENGTH: rng.choice((0, 0, 20)),
    }
    if rng.randrange(rare) == 0:
        change[OPERATION] = rng.choice(_RARE)
    if change[OPERATION] == TRUNCATE:
        change[OID], change[CODE] = rng.choice((20000, 20001, 20009)), 0
    if change[OPERATION] == MESSAGE:
        change[CODE], change[RELFILENODE] = IGNORED, 0
    if change[OPERATION] == DELETE and rng.randrange(5) == 0:
        change[FLAGS] = IS_SUPER
    return change


def random_changes(rng: random.Random) -> Gathered:
    rare = rng.choice((3, 20, 100))
    changes = np.zeros((FIELDS, ROWS), np.int64)
    used = 1
    for row in range(ROWS):
        for name, value in random_change(rng, row, rare).items():
            changes[name, row] = value
        for at, length in ((NEW_AT, NEW_LENGTH), (OLD_AT, OLD_LENGTH)):
            changes[at, row] = used
            used += changes[length, row]
    data = np.frombuffer(bytearray(rng.randbytes(used + TUPLES_ROOM)), np.uint8)
    completed = np.flatnonzero(np.isin(changes[OPERATION], (INSERT, UPDATE))).tolist()
    notes = {row: f"note {row}" for row in rng.sample(completed, 10)}
    return Gathered(changes, data, notes)


def commits() -> Commits:
    numbers = np.arange(COMMITS)
    return Commits(1000 + numbers, numbers, numbers, np.zeros(COMMITS, np.bool_), numbers, numbers)


def shown(rows: ChangeRows, data: Array) -> Iterator[tuple[Any, ...]]:
    """What a reader sees of each row."""
    fields = (LSN, SEQ, COMMIT, OPERATION, RELFILENODE, OFFSET, OLD_OFFSET, FLAGS)
    for row in range(len(rows)):
        change = rows.changes[:, row].tolist()
        tuples = [
            data[change[at] : change[at] + change[length]].tobytes()
            for at, length in ((NEW_AT, NEW_LENGTH), (OLD_AT, OLD_LENGTH))
            if change[OPERATION] in (INSERT, UPDATE, DELETE, MESSAGE)
        ]
        yield *(change[name] for name in fields), rows.table[row], rows.notes.get(row), *tuples


@pytest.mark.parametrize("is_followed", [False, True])
@pytest.mark.parametrize("wal_level", ["logical", "replica"])
def test_pieces_give_the_same_rows(rng: random.Random, wal_level: str, is_followed: bool) -> None:
    history = SchemaHistory(1, 2000) if is_followed else None
    versions = TableVersions(catalog(wal_level), history)
    arranger = ChangeArranger(versions, history, None)
    for _ in range(ROUNDS):
        gathered = random_changes(rng)
        piece_bytes = rng.choice((200, 1000, 5000))
        cuts = [0, *sorted(rng.sample(range(ROWS), 3)), ROWS]
        with ChangeSpill(COMMITS, np.zeros(len(TABLES), np.int64), piece_bytes) as spill:
            for begin, end in itertools.pairwise(cuts):
                notes = {row - begin: note for row, note in gathered.notes.items()}
                notes = {row: note for row, note in notes.items() if 0 <= row < end - begin}
                changes = gathered.changes[:, begin:end].copy()
                spill.put(Gathered(changes, gathered.data, notes))
            found = [
                row
                for rows, data in arranger.spilled(spill, commits())
                for row in shown(rows, data)
            ]
        expected = arranger.whole(gathered, commits())
        assert found == list(shown(expected, gathered.data))


def test_the_file_has_a_limit(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spill_file, "SPILL_BYTES_MAX", 1000)
    spill = ChangeSpill(COMMITS, np.zeros(len(TABLES), np.int64), 1000)
    with spill, pytest.raises(SpillError, match="have more than 1000 bytes"):
        spill.put(random_changes(rng))
