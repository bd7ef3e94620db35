"""Iceberg tables of a mirror, read by pyiceberg: its Avro, its metadata and its Parquet readers
are not those that wrote them."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from file_mirror import NOW_MS, TYPES, FileMirror, definition
from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus
from pyiceberg.table import StaticTable
from pyiceberg.table.snapshots import Snapshot
from s3_server import S3Server
from table_history import NAMES, TableHistory

from quorum_wal.objectstore.local import LocalStore
from quorum_wal.objectstore.store import Data, ObjectStore, open_store
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.iceberg_log import PUBLISHED, IcebergLog, location_of
from quorum_wal.spark.mirror.iceberg_metadata import FIRST_VERSION, KEPT_MS, decode_metadata
from quorum_wal.spark.mirror.iceberg_table import CLEAN_EVERY
from quorum_wal.spark.mirror.table_columns import columns_of, schema_of
from quorum_wal.spark.mirror.table_log import tables_of
from quorum_wal.spark.mirror.table_logs import check_format
from quorum_wal.spark.mirror.version import MirrorTable, TableFormat, Version

MIRROR = "quorum_wal.spark.mirror"
MINUTE_MS = 60_000
STEPS = 40


class Killed(Exception):
    pass


class KilledStore(LocalStore):
    """Ends the process, so to say, before one of its writes."""

    writes_left = 1 << 30

    def _write_one(self) -> None:
        if self.writes_left == 0:
            raise Killed
        self.writes_left -= 1

    def put(self, key: str, data: Data) -> None:
        self._write_one()
        super().put(key, data)

    def create(self, key: str, data: Data) -> bool:
        self._write_one()
        return super().create(key, data)


class World(FileMirror):
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(open_store(str(folder)), TableFormat.ICEBERG)

    def iceberg(self, name: str, folder: Path | None = None) -> StaticTable:
        return StaticTable.from_metadata(str((folder or self.folder) / quote(f"s.{name}")))

    def rows(self, table: MirrorTable) -> list[str]:
        files = [pq.read_table(self.folder / file.path) for file in table.files]
        return texts(pa.concat_tables(files)) if files else []


def texts(rows: pa.Table) -> list[str]:
    return sorted(repr(row) for row in rows.to_pylist())


def test_all_types(tmp_path: Path) -> None:
    world = World(tmp_path)
    table = world.table("a", *TYPES)
    IcebergLog(world.versions).publish(world.create(table), NOW_MS)
    found = world.iceberg("a").scan().to_arrow()
    wanted = schema_of(columns_of(definition("a", *TYPES)))
    assert texts(found.cast(wanted)) == world.rows(table)
    assert [str(field.field_type) for field in world.iceberg("a").schema().fields] == [
        *("long", "boolean", "int", "int", "float", "double", "decimal(12, 2)", "date"),
        *("timestamptz", "timestamp", "binary", "string"),
    ]  # fmt: skip
    parquet = pq.ParquetFile(tmp_path / table.files[0].path).schema
    assert parquet.column(list(TYPES).index("total")).physical_type == "INT64"


def test_random_histories(tmp_path: Path) -> None:
    """Processes are killed between a version and its publication, and while they publish it."""
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    rng = Random(seed)
    world, killed = World(tmp_path), KilledStore(str(tmp_path))
    history = TableHistory(world, rng)
    expected: dict[tuple[str, int], list[str]] = {}
    types: dict[tuple[str, int], str] = {}
    log, now_ms = IcebergLog(world.versions), NOW_MS
    for _ in range(STEPS):
        version = history.next_version()
        tables = tables_of(version)
        for name in NAMES:
            table = tables.get(f"s.{name}")
            expected[name, version.number] = world.rows(table) if table else []
        now_ms += rng.randrange(4 * MINUTE_MS)
        if rng.random() < 0.3:
            world.versions.store, killed.writes_left = killed, rng.randrange(8)
            try:
                IcebergLog(world.versions).publish(version, now_ms)
            except Killed:
                pass  # the next process publishes the version
            world.versions.store = open_store(str(tmp_path))
            log = IcebergLog(world.versions)
            if rng.random() < 0.5:
                continue  # the next process begins with a later version
        if rng.random() < 0.2:
            log = IcebergLog(world.versions)
        log.publish(version, now_ms)
        for name in NAMES:
            if (tmp_path / quote(f"s.{name}") / "metadata").exists():
                assert_table(world, name, tables.get(f"s.{name}"), version, expected, types)


def assert_table(
    world: World,
    name: str,
    table: MirrorTable | None,
    version: Version,
    expected: dict[tuple[str, int], list[str]],
    types: dict[tuple[str, int], str],
) -> None:
    iceberg = world.iceberg(name)
    snapshot = iceberg.current_snapshot()
    assert snapshot is not None
    assert snapshot.snapshot_id <= version.number
    assert texts(iceberg.scan().to_arrow()) == expected[name, version.number]
    if table is not None:
        columns = [(each["number"], each["name"]) for each in table.definition["columns"]]
        assert [(field.field_id, field.name) for field in iceberg.schema().fields] == columns
    assert_entries(iceberg, table)
    assert_summary(snapshot.summary, table)
    older = iceberg.metadata.snapshots[-4:-1]
    for each in older:
        found = iceberg.scan(snapshot_id=each.snapshot_id).to_arrow()
        assert texts(found) == expected[name, each.snapshot_id]
    for schema in iceberg.metadata.schemas:
        for field in schema.fields:
            key = str(iceberg.metadata.table_uuid), field.field_id
            before = types.setdefault(key, str(field.field_type))
            assert (before, str(field.field_type)) in PROMOTED or before == str(field.field_type)


PROMOTED = {
    ("int", "long"), ("float", "double"), ("decimal(10, 2)", "decimal(20, 2)"),
}  # fmt: skip


def assert_entries(iceberg: StaticTable, table: MirrorTable | None) -> None:
    """The files of the table, each with its size. The snapshot added the new ones, and removed
    others of its parent; all others have the snapshot that added them."""
    files = () if table is None else table.files
    prefix = f"{iceberg.metadata.location.rpartition('/')[0]}/"
    entries = entries_of(iceberg, iceberg.metadata.snapshots[-1])
    live = [entry for entry in entries if entry.status != ManifestEntryStatus.DELETED]
    assert {
        (entry.data_file.file_path.removeprefix(prefix), entry.data_file.record_count,
         entry.data_file.file_size_in_bytes)
        for entry in live
    } == {(file.path, file.rows, file.bytes) for file in files}  # fmt: skip
    assert len(live) == len(files)
    before = set()
    if len(iceberg.metadata.snapshots) > 1:
        parent = entries_of(iceberg, iceberg.metadata.snapshots[-2])
        before = {
            entry.data_file.file_path
            for entry in parent
            if entry.status != ManifestEntryStatus.DELETED
        }
    for entry in entries:
        is_added = entry.status == ManifestEntryStatus.ADDED
        assert (entry.data_file.file_path in before) != is_added
        if entry in live:
            assert entry.snapshot_id == entry.sequence_number
            assert (entry.snapshot_id == iceberg.metadata.current_snapshot_id) == is_added
            assert entry.snapshot_id >= int(iceberg.metadata.properties[FIRST_VERSION])


def entries_of(iceberg: StaticTable, snapshot: Snapshot) -> list[ManifestEntry]:
    return [
        entry
        for manifest in snapshot.manifests(iceberg.io)
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=False)
    ]


def assert_summary(summary: Any, table: MirrorTable | None) -> None:
    files = () if table is None else table.files
    found = [int(summary[f"total-{each}"]) for each in ("data-files", "records", "files-size")]
    sizes = [(1, file.rows, file.bytes) for file in files]
    assert found == [sum(size[place] for size in sizes) for place in range(3)]


def test_killed_before_each_write(tmp_path: Path) -> None:
    """The next process publishes the version, each table once."""
    writes = 0
    while True:
        world = World(tmp_path / str(writes))
        IcebergLog(world.versions).publish(world.create(world.table("a", "id")), NOW_MS)
        tables = [world.table(name, "id", "n", rows=2, version=2) for name in ("a", "b")]
        version = world.create(*tables)
        store = KilledStore(str(world.folder))
        store.writes_left = writes
        world.versions.store = store
        try:
            IcebergLog(world.versions).publish(version, NOW_MS + 1)
            break
        except Killed:
            pass  # the next process publishes the version
        world.versions.store = open_store(str(world.folder))
        IcebergLog(world.versions).publish(version, NOW_MS + 2)
        for name, ids in (("a", [1, 2]), ("b", [2])):
            found = world.iceberg(name)
            assert [each.snapshot_id for each in found.metadata.snapshots] == ids
            assert found.scan().to_arrow().num_rows == 2
        writes += 1
    assert writes == 9  # four of each table, and the last one


def test_the_next_process_begins_with_a_later_version(tmp_path: Path) -> None:
    """Of one table, the process that was killed has published the version before."""
    world = World(tmp_path)
    IcebergLog(world.versions).publish(world.create(world.table("a", "id")), NOW_MS)
    tables = [world.table(name, "id", rows=2, version=2) for name in ("a", "b")]
    version = world.create(*tables)
    world.versions.store = store = KilledStore(str(tmp_path))
    store.writes_left = 4
    with pytest.raises(Killed):
        IcebergLog(world.versions).publish(version, NOW_MS)
    world.versions.store = open_store(str(tmp_path))
    (file,) = world.table("a", "id", version=3).files
    grown = replace(tables[0], files=(*tables[0].files, file))
    IcebergLog(world.versions).publish(world.create(grown, tables[1]), NOW_MS)
    for table, ids in ((grown, [1, 2, 3]), (tables[1], [3])):
        found = world.iceberg(table.definition["table"])
        assert [each.snapshot_id for each in found.metadata.snapshots] == ids
        assert found.scan().to_arrow().num_rows == table.rows
        assert_entries(found, table)


def test_old_snapshots_and_their_metadata_are_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    log, now_ms = IcebergLog(world.versions), int(datetime.now(UTC).timestamp() * 1000)
    for number in range(1, 2 * CLEAN_EVERY + 1):
        columns = ("id", "n") if number % 3 else ("id",)
        log.publish(
            world.create(world.table("a", *columns, version=number)), now_ms + number * MINUTE_MS
        )
    kept = KEPT_MS // MINUTE_MS
    found = world.iceberg("a").metadata
    assert [each.snapshot_id for each in found.snapshots] == list(range(40 - kept, 41))
    assert len(found.schemas) == 2
    assert len(found.metadata_log) == kept
    names = {path.name for path in (tmp_path / "s.a" / "metadata").iterdir()}
    assert len(names) == 3 * (kept + 1) + 1
    for entry in found.metadata_log:
        assert Path(entry.metadata_file.removeprefix("file://")).exists()
    assert world.iceberg("a").scan(snapshot_id=40 - kept).to_arrow().num_rows == 1


def test_a_mirror_that_was_moved(tmp_path: Path) -> None:
    world = World(tmp_path / "old")
    tables = [world.table(name, "id") for name in ("a", "b")]
    world.create(*tables)
    IcebergLog(world.versions).publish(world.create(*tables), NOW_MS)
    shutil.move(tmp_path / "old", tmp_path / "new")
    moved = World(tmp_path / "new")
    moved.version = world.version
    for _ in range(2):
        IcebergLog(moved.versions).publish(moved.version, NOW_MS)
        for name in ("a", "b"):
            found = moved.iceberg(name)
            assert found.scan().to_arrow().num_rows == 1
            assert [each.snapshot_id for each in found.metadata.snapshots] == [2]
            assert found.metadata.location == f"file://{tmp_path}/new/s.{name}"
    (file,) = moved.table("a", "id", rows=2, version=3).files
    grown = replace(tables[0], files=(*tables[0].files, file))
    IcebergLog(moved.versions).publish(moved.create(grown, tables[1]), NOW_MS)
    assert moved.iceberg("a").scan().to_arrow().num_rows == 3
    assert_entries(moved.iceberg("a"), grown)


def damaged_metadata(store: ObjectStore) -> None:
    store.put("s.a/metadata/v1.metadata.json", b'{"format-version":2}')


def foreign_commit(store: ObjectStore) -> None:
    store.put("s.a/metadata/v2.metadata.json", b"{}")


def damaged_pointer(store: ObjectStore) -> None:
    store.put(PUBLISHED, b"[]")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (damaged_metadata, r'"s.a/metadata/v1.metadata.json" is not the metadata of a mirror'),
        (foreign_commit, r'"s.a/metadata/v2.metadata.json" is not the metadata of a mirror'),
        (damaged_pointer, r'"_mirror/iceberg.json" is damaged'),
    ],
)
def test_damage(tmp_path: Path, damage: Callable[[ObjectStore], None], message: str) -> None:
    world = World(tmp_path)
    IcebergLog(world.versions).publish(world.create(world.table("a", "id")), NOW_MS)
    damage(world.versions.store)
    version = world.create(world.table("a", "id", rows=2, version=2))
    with pytest.raises(MirrorError, match=message):
        IcebergLog(world.versions).publish(version, NOW_MS)


def test_another_process_commits(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = IcebergLog(world.versions)
    log.publish(world.create(world.table("a", "id")), NOW_MS)
    foreign_commit(world.versions.store)
    with pytest.raises(MirrorError, match=r"v2\.metadata\.json exists already"):
        log.publish(world.create(world.table("a", "id", rows=2, version=2)), NOW_MS)


def test_another_process_has_published_a_later_version(tmp_path: Path) -> None:
    world = World(tmp_path)
    first = world.create(world.table("a", "id"))
    second = world.create(world.table("a", "id", rows=2, version=2))
    IcebergLog(world.versions).publish(second, NOW_MS)
    with pytest.raises(MirrorError, match=r"log of s\.a has version 2 already"):
        IcebergLog(world.versions).publish(first, NOW_MS)


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b'{"snapshots":[]}'])
def test_no_metadata(data: bytes) -> None:
    with pytest.raises(MirrorError, match="is not the metadata"):
        decode_metadata(data, "x")


@pytest.mark.parametrize("url", ["memory://", "az://a/mirror", "/srv/a#b"])
def test_places_whose_urls_readers_do_not_know(url: str) -> None:
    with pytest.raises(MirrorError, match="Iceberg tables cannot be in"):
        location_of(open_store(url, {"account_name": "x"} if url.startswith("az") else {}))


def test_without_the_package_for_avro(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.startswith(f"{MIRROR}.iceberg")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastavro", None)
    store = open_store(str(tmp_path))
    check_format(TableFormat.DELTA, store)
    with pytest.raises(MirrorError, match="needs the Python package fastavro") as raised:
        check_format(TableFormat.ICEBERG, store)
    assert "pip install fastavro" in raised.value.hint


@pytest.fixture
def s3_server(tmp_path: Path) -> Iterator[S3Server]:
    with S3Server(tmp_path / "moto_server.log") as server:
        yield server


def test_in_an_object_store(s3_server: S3Server) -> None:
    store = open_store(f"{s3_server.new_bucket()}/some/prefix/", s3_server.options())
    world = FileMirror(store, TableFormat.ICEBERG)
    log = IcebergLog(world.versions)
    log.publish(world.create(world.table("ü", "id")), NOW_MS)
    log.publish(world.create(world.table("ü", "id", "n", rows=3, version=2)), NOW_MS)
    options = s3_server.options()
    found = StaticTable.from_metadata(
        f"{store.url.rstrip('/')}/{quote('s.ü')}",
        {
            "s3.endpoint": options["endpoint"],
            "s3.region": options["region"],
            "s3.access-key-id": options["access_key_id"],
            "s3.secret-access-key": options["secret_access_key"],
        },
    )
    assert found.scan().to_arrow().to_pylist() == [{"id": 1, "n": 3}] * 3
