"""The Iceberg tables of a mirror, read by pyiceberg."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from pyiceberg.table import StaticTable

from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.mirror.version import Versions


def assert_iceberg(mirror: Path, *names: str) -> None:
    """The current snapshots have the files of the current version, and all of their rows."""
    version = Versions(open_store(str(mirror))).newest()
    assert version is not None
    for name in names:
        table = StaticTable.from_metadata(str(mirror / quote(name, safe=".")))
        found = {task.file.file_path for task in table.scan().plan_files()}
        files = version.table(name).files
        assert found == {f"file://{mirror}/{file.path}" for file in files}, name
        assert table.scan().to_arrow().num_rows == version.table(name).rows, name
