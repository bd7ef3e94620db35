"""The Iceberg tables of a mirror, read by pyiceberg."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from mirror_world import mirrored_rows
from pyiceberg.table import StaticTable

from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.mirror.version import Versions


def assert_iceberg_tables(mirror: Path) -> None:
    """They have the columns and the files of the current version, and no others."""
    version = Versions(open_store(str(mirror))).newest()
    assert version is not None
    tables = {each.name: each for each in version.tables if not each.is_partitioned}
    folders = {path.parent.name for path in mirror.glob("*/metadata")}
    assert {quote(name, safe=".") for name in tables} <= folders
    for folder in folders:
        table = StaticTable.from_metadata(str(mirror / folder))
        found = {task.file.file_path for task in table.scan().plan_files()}
        if folder not in tables:
            assert not found, folder  # it was dropped or renamed
            continue
        expected = tables[folder]
        assert found == {f"file://{mirror}/{file.path}" for file in expected.files}, folder
        names = [column["name"] for column in expected.definition["columns"]]
        assert table.scan().to_arrow().column_names == names, folder
        assert table.scan().to_arrow().num_rows == len(mirrored_rows(mirror, folder)), folder
