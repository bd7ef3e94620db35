"""Versions and files of a mirror: one writer, no lost file, and every change checked."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.schema_change import ColumnSource
from quorum_wal.spark.mirror.table_columns import array_of, bucket_of, columns_of, schema_of
from quorum_wal.spark.mirror.table_files import NET_SCHEMA, TableFiles
from quorum_wal.spark.mirror.version import (
    FORMAT,
    KEPT,
    VERSIONS,
    MirrorFile,
    MirrorJob,
    MirrorTable,
    SeenTransactions,
    TableFormat,
    Version,
    Versions,
)

DEFINITION: dict[str, Any] = {
    "schema": "s", "table": "a", "kind": "table", "key": ["id"],
    "columns": [{"number": 1, "name": "id", "type": "integer"},
                {"number": 2, "name": "big", "type": "text"}],
}  # fmt: skip
JOB = MirrorJob(FORMAT, 7, "db", ("s.*",), (), is_text=False, table_format=TableFormat.PARQUET)


def files(folder: Path, version: int = 1, buckets: int = 1, *found: MirrorFile) -> TableFiles:
    columns = columns_of(DEFINITION)
    return TableFiles(
        str(folder), (), "s.a", columns, ("id",), buckets, found, version, f"{version:08}"
    )


def written(folder: Path, rows: dict[int, str], buckets: int = 1) -> TableFiles:
    """Its files, each with the rows of its bucket."""
    made, table = [], files(folder, 1, buckets)
    for bucket in range(buckets):
        mine = {key: big for key, big in rows.items() if bucket_of(str(key), buckets) == bucket}
        arrow = pa.Table.from_pydict(
            {"id": list(mine), "big": list(mine.values())}, schema=schema_of(table.columns)
        )
        made.append(table.write(open_store(str(folder)), bucket, arrow))
    return files(folder, 2, buckets, *made)


def net(*rows: tuple[str, str | None, bool, bytes | None]) -> pa.Table:
    columns = zip(zip(*rows, strict=True), NET_SCHEMA, strict=True)
    arrays = [pa.array(list(column), field.type) for column, field in columns]
    return pa.Table.from_arrays(arrays, schema=NET_SCHEMA)


def rows_of(folder: Path, file: MirrorFile | None) -> dict[int, str]:
    assert file is not None
    rows = pq.read_table(folder / file.path).to_pylist()
    return {row["id"]: row["big"] for row in rows}


def test_net_changes_are_merged(tmp_path: Path) -> None:
    table = written(tmp_path, {1: "one", 2: "two", 3: "three"})
    changes = net(
        ("1", None, True, None),
        ("2", None, True, b'{"id":2,"big":"TWO"}'),
        ("4", "3", False, b'{"id":4}'),
        ("3", None, True, None),
    )
    assert rows_of(tmp_path, table.merge(0, changes)) == {2: "TWO", 4: "three"}


def test_a_value_that_another_bucket_has(tmp_path: Path) -> None:
    table = written(tmp_path, {key: f"big {key}" for key in range(40)}, buckets=4)
    target = next(key for key in range(100, 200) if bucket_of(str(key), 4) == 0)
    source = next(key for key in range(40) if bucket_of(str(key), 4) == 3)
    file = table.merge(0, net((str(target), str(source), False, b'{"id":%d}' % target)))
    assert rows_of(tmp_path, file)[target] == f"big {source}"


def test_a_bucket_without_rows_has_no_file(tmp_path: Path) -> None:
    assert written(tmp_path, {1: "x"}).merge(0, net(("1", None, True, None))) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("9", None, True, None), "has no row with key '9'"),
        (("1", None, False, b'{"id":1,"big":"x"}'), "has a row with key '1', which is inserted"),
        (("8", "9", False, b'{"id":8}'), "has no row with key '9'"),
    ],
)
def test_changes_that_do_not_fit(tmp_path: Path, change: Any, message: str) -> None:
    with pytest.raises(MirrorError, match=message) as raised:
        written(tmp_path, {1: "x"}).merge(0, net(change))
    assert "new mirror" in raised.value.hint


def test_a_damaged_file(tmp_path: Path) -> None:
    table = written(tmp_path, {1: "x"})
    (tmp_path / table.files[0].path).write_bytes(b"PAR1 and no more")
    with pytest.raises(MirrorError, match=r"a file of the mirror cannot be read: s\.a/"):
        table.merge(0, net(("1", None, True, None)))


def test_more_buckets_and_other_columns(tmp_path: Path) -> None:
    table = written(tmp_path, {key: "new" for key in range(50)})
    after = files(tmp_path, 3, 5)
    sources = [ColumnSource("id"), ColumnSource("big", labels={"new": "open"})]
    made = table.rewrite(table.files[0], 0, after, sources)
    assert len({file.path for file in made}) == 5
    found = {key: big for file in made for key, big in rows_of(tmp_path, file).items()}
    assert found == {key: "open" for key in range(50)}
    for file in made:
        assert all(bucket_of(str(key), 5) == file.bucket for key in rows_of(tmp_path, file))


# ---- versions


def version(number: int, *found: MirrorFile) -> Version:
    table = MirrorTable(DEFINITION, 1, found)
    seen = SeenTransactions(9, 8, 700, (5,))
    return Version(number, 100, None, None, "_mirror/catalogs/1.json", seen, (table,))


def test_the_newest_version(tmp_path: Path) -> None:
    versions = Versions(open_store(str(tmp_path)))
    assert versions.newest() is None
    for number in (9, 10, 11):
        versions.create(version(number))
    assert versions.newest() == version(11)
    with pytest.raises(MirrorError, match=r"version 11 of .* exists already") as raised:
        versions.create(version(11))
    assert "Another process" in raised.value.hint


def test_a_mirror_of_something_else(tmp_path: Path) -> None:
    versions = Versions(open_store(str(tmp_path)))
    versions.begin(JOB)
    versions.begin(JOB)
    with pytest.raises(MirrorError, match="is another mirror"):
        versions.begin(replace(JOB, system_id=8))
    with pytest.raises(MirrorError, match="has the format parquet, not iceberg"):
        versions.begin(replace(JOB, table_format=TableFormat.ICEBERG))
    versions.store.put(f"{VERSIONS}000000000001.json", b'{"number":"one"}')
    with pytest.raises(MirrorError, match="is not of a mirror"):
        versions.newest()


def test_files_of_old_versions_are_deleted_later(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    versions = Versions(store)
    paths = [f"s.a/{number:012}-0000-00000000.parquet" for number in (1, 2, 3, 4)]
    foreign = ["s.a/000000000001.parquet", "s.a/data.parquet"]
    for path in (*paths, *foreign, "_mirror/catalogs/1.json", "_mirror/catalogs/0.json"):
        store.put(path, b"x")
    found = [MirrorFile(path, 0, 1, 1) for path in paths]
    versions.create(version(1, found[0]))
    versions.create(version(2, found[1]))
    versions.create(version(3, found[1], found[2]))
    now = datetime.now(UTC)
    versions.clean(version(3), now)
    assert {info.key for info in store.list("s.a/")} == {*paths, *foreign}
    versions.clean(version(3), now + 2 * KEPT)
    # The last one may belong to a version that is being written.
    assert {info.key for info in store.list("s.a/")} == {*paths[1:], *foreign}
    assert [info.key for info in store.list(VERSIONS)] == [f"{VERSIONS}000000000003.json"]
    assert [info.key for info in store.list("_mirror/catalogs/")] == ["_mirror/catalogs/1.json"]


def test_a_version_that_was_current_for_a_long_time(tmp_path: Path) -> None:
    """Its files stay for as long after it as those of any other version."""
    store = open_store(str(tmp_path))
    versions = Versions(store)
    paths = [f"s.a/{number:012}-0000-00000000.parquet" for number in (1, 2)]
    for number, path in enumerate(paths, 1):
        store.put(path, b"x")
        versions.create(version(number, MirrorFile(path, 0, 1, 1)))
    now = datetime.now(UTC)
    for path in (paths[0], f"{VERSIONS}000000000001.json"):
        os.utime(tmp_path / path, ((now - 2 * KEPT).timestamp(),) * 2)
    versions.clean(version(2), now)
    assert [info.key for info in store.list("s.a/")] == paths
    versions.clean(version(2), now + 2 * KEPT)
    assert [info.key for info in store.list("s.a/")] == paths[1:]


def test_partitions(tmp_path: Path) -> None:
    parent = MirrorTable({**DEFINITION, "table": "p", "kind": "partitioned table"})
    inner = MirrorTable({**parent.definition, "table": "i", "partition_of": "s.p"})
    parts = [MirrorTable({**DEFINITION, "table": name, "partition_of": of})
             for name, of in (("p1", "s.p"), ("p2", "s.i"))]  # fmt: skip
    found = replace(version(1), tables=(parent, inner, *parts))
    assert [each.name for each in found.parts("s.p")] == ["s.p2", "s.p1"]
    assert found.parents(parts[1].definition) == ["s.i", "s.p"]
    with pytest.raises(MirrorError, match=r'no table "s\.x"'):
        found.parts("s.x")


def test_a_missing_value_is_a_constant(tmp_path: Path) -> None:
    table = written(tmp_path, {1: "x"})
    sources = [ColumnSource("id"), ColumnSource(None, b'"default"')]
    (made,) = table.rewrite(table.files[0], 0, files(tmp_path, 3), sources)
    assert rows_of(tmp_path, made) == {1: "default"}
    assert array_of([None], table.columns[1]).null_count == 1
