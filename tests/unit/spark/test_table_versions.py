"""Which definition a row has: the last one in the order of commits and of the WAL."""

from __future__ import annotations

import numpy as np

from quorum_wal.spark.changes.catalog import Catalog, Column, Table
from quorum_wal.spark.changes.change_set import CODE, COMMIT, FIELDS, Gathered
from quorum_wal.spark.changes.heap_fields import INSERT, LSN, OPERATION, RELFILENODE, SEQ, TRUNCATE
from quorum_wal.spark.changes.schema_history import (
    EventKind,
    SchemaEvent,
    SchemaHistory,
    TableVersion,
)
from quorum_wal.spark.changes.table_versions import SCHEMA, TableVersions
from quorum_wal.spark.changes.transaction_commits import Commits

FILE, NEW_FILE = 16384, 16390


def table(name: str, file: int = FILE) -> Table:
    column = Column("a", 23, -1, 4, 4, True, False, None, None)
    return Table(FILE, file, "public", name, 0, 0, (0,), (column,))


def catalog() -> Catalog:
    return Catalog(
        system_id=1,
        version_major=16,
        database_oid=5,
        database_name="shop",
        lsn=50,
        wal_level="replica",
        tables=[table("first")],
        types=[],
        ignored={},
    )


def history() -> SchemaHistory:
    """Transaction 200 renames the table at 150, and another one rewrites it from 260 on."""
    versions = [
        TableVersion(200, 150, table("renamed"), 0),
        TableVersion(300, 260, table("renamed", NEW_FILE), 0, is_rewrite=True),
        TableVersion(300, 280, table("renamed", NEW_FILE), 0),
    ]
    events = [
        SchemaEvent(200, 150, EventKind.SCHEMA, 0, 0, "{}", "{}"),
        SchemaEvent(200, 150, EventKind.TRUNCATE, 0, 1),
        SchemaEvent(300, 260, EventKind.REWRITE, 1),
    ]
    return SchemaHistory(50, 400, versions, events)


def commits(*lsns: int) -> Commits:
    count = len(lsns)
    empty = np.empty(0, np.int64)
    zeros = np.zeros(count, np.int64)
    return Commits(np.array(lsns), zeros, zeros, np.zeros(count, np.bool_), empty, empty)


def changes(*rows: tuple[int, int, int]) -> np.ndarray:
    """(number of the commit, LSN, file)"""
    found = np.zeros((FIELDS, len(rows)), np.int64)
    found[COMMIT], found[LSN], found[RELFILENODE] = np.array(rows).T
    found[OPERATION] = INSERT
    return found


def test_a_transaction_sees_its_own_ddl_and_others_see_it_from_its_commit_on() -> None:
    versions = TableVersions(catalog(), history())
    rows = changes(
        (0, 170, FILE),  # commits before the rename, although it writes after it
        (1, 140, FILE),
        (1, 160, FILE),
        (2, 165, FILE),  # commits after the rename
    )
    versions.assign(rows, commits(190, 200, 210))
    names = [versions.catalog.tables[code // 2].name for code in rows[CODE].tolist()]
    assert names == ["first", "first", "renamed", "renamed"]


def test_events_of_a_transaction_are_rows() -> None:
    versions = TableVersions(catalog(), history())
    gathered = Gathered(changes((0, 170, FILE)), np.zeros(1, np.uint8), {})
    found, events = versions.with_events(gathered, commits(200), None)
    assert found.changes[OPERATION].tolist() == [INSERT, SCHEMA, TRUNCATE]
    assert found.changes[SEQ].tolist() == [0, 0, 1]
    assert list(events) == [1, 2]


def test_a_rewrite_without_rows_removes_none() -> None:
    """VACUUM FULL writes whole pages; an ALTER TABLE inserts rows."""
    for rows, expected in (((0, 270, FILE), [INSERT]), ((0, 270, NEW_FILE), [INSERT, TRUNCATE])):
        versions = TableVersions(catalog(), history())
        gathered = Gathered(changes(rows), np.zeros(1, np.uint8), {})
        at = commits(300)
        versions.assign(gathered.changes, at)
        found, _ = versions.with_events(gathered, at, None)
        assert found.changes[OPERATION].tolist() == expected


def test_a_part_has_what_its_transactions_need() -> None:
    part = history().part(250, 400, is_first=True)
    assert [version.lsn for version in part.versions] == [150, 260, 280]
    assert [event.kind for event in part.events] == [EventKind.REWRITE]
    assert part.versions[part.events[0].version].is_rewrite
    part = history().part(350, 400, is_first=False)
    assert [version.lsn for version in part.versions] == [280]
    assert part.events == []
