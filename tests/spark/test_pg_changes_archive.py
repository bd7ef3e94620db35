"""`format("pg_changes")` from an archive: the changes of the segments that it is made of."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from wal_rows import archive_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDER = [("commit_lsn", "ascending"), ("lsn", "ascending"), ("seq", "ascending")]
#: of table t, by the server's own statements
INSERTED = 3 * 2000 + 2
UPDATED = 2000 // 3
DELETED = 9 + 1997  # in two phases; those of even numbers behind


def changes(session: SparkSession, path: Path, catalog: Path) -> pa.Table:
    """In more tasks than one, each of which looks back for itself."""
    options = {"path": str(path), "catalog": str(catalog), "partition_bytes": "1MB"}
    # This WAL begins before the first list of open transactions.
    frame = session.read.format("pg_changes").options(**options, on_unknown="pass").load()
    assert frame.rdd.getNumPartitions() > 3
    return frame.toArrow().sort_by(ORDER)


def test_an_archive_has_the_changes_of_its_segments(
    session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    archive_of(server_wal, tmp_path / "archive")
    expected = changes(session, server_wal, server_catalog)
    counts = Counter(expected["operation"].to_pylist())
    assert (counts["insert"], counts["update"], counts["delete"]) == (INSERTED, UPDATED, DELETED)
    found = changes(session, tmp_path / "archive", server_catalog)
    assert found.to_pylist() == expected.to_pylist()
