"""A user's own packages may have the names of ours: `spark`, `storage`, `backup`, `cli`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
#: Spark imports by name on the driver, in the process that plans, and in the workers.
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from quorum_wal.spark.register import register

try:
    import spark
except ImportError as error:
    print(error)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
register(session)
print(session.read.format("pg_wal").option("path", sys.argv[1]).load().count())
"""


def test_spark_reads_wal_beside_packages_of_the_same_names(
    session: SparkSession, server_wal: Path, tmp_path: Path
) -> None:
    for link in (ROOT / "quorum_wal").iterdir():
        if link.is_symlink():
            (tmp_path / link.name).mkdir()
            foreign = tmp_path / link.name / "__init__.py"
            foreign.write_text(f'raise ImportError("a foreign {link.name}")')
    (tmp_path / "program.py").write_text(PROGRAM)
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "program.py", server_wal],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, paths))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    said, count = done.stdout.split("\n", 1)
    assert said == "a foreign spark", "the test proves nothing"
    here = session.read.format("pg_wal").option("path", str(server_wal)).load().count()
    assert int(count) == here > 0
