"""Delta tables of a mirror, read by delta-rs, an independent reader of Delta's log."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from file_mirror import NOW_MS, TYPES, FileMirror, definition

from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.delta_log import CHECKPOINT_EVERY, PUBLISHED, DeltaLog
from quorum_wal.spark.mirror.table_columns import array_of, columns_of, schema_of
from quorum_wal.spark.mirror.version import TableFormat


class World(FileMirror):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(open_store(str(folder)), TableFormat.DELTA)

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


def test_another_process_has_published_a_later_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.create(world.table("a", "id"))
    second = world.create(world.table("a", "id", rows=2, version=2))
    DeltaLog(world.versions).publish(second, NOW_MS)
    with pytest.raises(MirrorError, match=r"log of s\.a has version 2 already"):
        DeltaLog(world.versions).publish(first, NOW_MS)


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
