"""The rows that Spark's file sink has committed, by its own log: files of failed tries do not
count."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def written(lake: Path) -> list[int]:
    """The LSNs of all rows, in order, repeated if they were written twice."""
    tables = [pq.read_table(file, columns=["lsn"]) for file in committed_files(lake)]
    return sorted(pa.concat_tables(tables)["lsn"].to_pylist())


def committed_files(lake: Path) -> set[Path]:
    return {
        lake / Path(json.loads(line)["path"]).name  # another machine may mount it elsewhere
        for log in (lake / "_spark_metadata").iterdir()
        if not log.name.startswith(".")
        for line in log.read_text().splitlines()
        if line.startswith("{")
    }
