"""Delta tables of a mirror, read by delta-rs, an independent reader of Delta's log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.delta_log import CHECKPOINT_EVERY, PUBLISHED, DeltaLog
from quorum_wal.spark.mirror.table_columns import array_of, columns_of, schema_of
from quorum_wal.spark.mirror.table_files import TableFiles
from quorum_wal.spark.mirror.version import (
    FORMAT,
    MirrorJob,
    MirrorTable,
    SeenTransactions,
    TableFormat,
    Version,
    Versions,
)

TYPES = {
    "id": ("bigint", b"1"),
    "flag": ("boolean", b"true"),
    "small": ("smallint", b"2"),
    "n": ("integer", b"3"),
    "ratio": ("real", b"0.5"),
    "double": ("double precision", b"0.25"),
    "total": ("numeric(12,2)", b"12.50"),
    "day": ("date", b'"2026-11-26"'),
    "at": ("timestamp with time zone", b'"2026-11-26T09:00:00+00:00"'),
    "plain": ("timestamp without time zone", b'"2026-11-26T09:00:00"'),
    "raw": ("bytea", rb'"\\x00ff"'),
    "täxt": ("text", '"ü"'.encode()),
}
NOW_MS = 1_790_000_000_000


def definition(name: str, *columns: str) -> dict[str, Any]:
    return {
        "schema": "s", "table": name, "kind": "table", "key": ["id"],
        "columns": [
            {"number": number, "name": column, "type": TYPES[column][0]}
            for number, column in enumerate(columns, 1)
        ],
    }  # fmt: skip


class World:
    """A mirror without a source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.versions = Versions(open_store(str(folder)))
        self.versions.begin(
            MirrorJob(FORMAT, 1, "db", (), (), is_text=False, table_format=TableFormat.DELTA)
        )
        self.version = Version(0, 0, None, None, "", SeenTransactions(0, 0, 1, ()), ())

    def table(self, name: str, *columns: str, rows: int = 1, version: int = 1) -> MirrorTable:
        """One with a file of equal rows."""
        defined = definition(name, *columns)
        found = columns_of(defined)
        files = TableFiles(
            str(self.folder), (), f"s.{name}", found, ("id",), 1, (), version, f"{version:08}"
        )
        arrays = [array_of([TYPES[column][1]] * rows, of) for column, of in
                  zip(columns, found, strict=True)]  # fmt: skip
        table = pa.Table.from_arrays(arrays, schema=schema_of(found))
        return MirrorTable(defined, 1, (files.write(self.versions.store, 0, table),))

    def create(self, *tables: MirrorTable) -> Version:
        self.version = replace(self.version, number=self.version.number + 1, tables=tables)
        self.versions.create(self.version)
        return self.version

    def delta(self, name: str) -> pa.Table:
        return pa.table(DeltaTable(self.folder / f"s.{name}").to_pyarrow_table())


def test_all_types(tmp_path: Path) -> None:
    world = World(tmp_path)
    version = world.create(world.table("a", *TYPES))
    DeltaLog(world.versions).publish(version, NOW_MS)
    found = world.delta("a")
    expected = schema_of(columns_of(definition("a", *TYPES)))
    assert found.cast(expected).to_pylist() == [
        {name: array_of([value], columns_of(definition("a", name))[0])[0].as_py()
         for name, (_, value) in TYPES.items()}
    ]  # fmt: skip


def test_changes_of_files_columns_and_tables(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = DeltaLog(world.versions)
    first, other = world.table("a", "id"), world.table("b", "id")
    log.publish(world.create(first, other), NOW_MS)
    log.publish(world.create(world.table("a", "id", rows=3, version=2), other), NOW_MS)
    assert (world.delta("a").num_rows, world.delta("b").num_rows) == (3, 1)
    assert DeltaTable(tmp_path / "s.b").version() == 0
    log.publish(world.create(world.table("a", "id", "flag", rows=2, version=3)), NOW_MS)
    assert world.delta("a").column_names == ["id", "flag"]
    assert world.delta("b").num_rows == 0


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_process_that_was_killed_before_it_published_all(
    tmp_path: Path, is_committed: bool
) -> None:
    """Before or after the commit of the table. The next process publishes it once."""
    world = World(tmp_path)
    DeltaLog(world.versions).publish(world.create(world.table("a", "id")), NOW_MS)
    pointer = world.versions.store.get(PUBLISHED)
    version = world.create(world.table("a", "id", rows=2, version=2))
    if is_committed:
        DeltaLog(world.versions).publish(version, NOW_MS)
        world.versions.store.put(PUBLISHED, pointer)
    DeltaLog(world.versions).publish(version, NOW_MS)
    assert DeltaTable(tmp_path / "s.a").version() == 1
    assert world.delta("a").num_rows == 2


def test_checkpoints_replace_old_commits(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = DeltaLog(world.versions)
    for number in range(1, 2 * CHECKPOINT_EVERY + 3):
        log.publish(world.create(world.table("a", "id", "plain", version=number)), NOW_MS)
    names = sorted(path.name for path in (tmp_path / "s.a" / "_delta_log").iterdir())
    assert f"{2 * CHECKPOINT_EVERY:020}.checkpoint.parquet" in names
    assert f"{CHECKPOINT_EVERY - 1:020}.json" not in names
    assert DeltaTable(tmp_path / "s.a").version() == 2 * CHECKPOINT_EVERY + 1
    assert world.delta("a").num_rows == 1


def test_another_writer(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = DeltaLog(world.versions)
    log.publish(world.create(world.table("a", "id")), NOW_MS)
    world.versions.store.put("s.a/_delta_log/00000000000000000001.json", b"{}\n")
    world.versions.store.put(PUBLISHED, b"what")
    with pytest.raises(MirrorError, match=r'"_mirror/delta.json" is damaged'):
        DeltaLog(world.versions).publish(world.version, NOW_MS)
