"""Spark's daemon of Python workers, which has imported the modules of our sources before it forks.

To import them is most of what a worker costs that runs one small task: 1 s of a processor. The
workers are otherwise Spark's own. Drivers that are processes of their own have Spark's own daemon.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

from pyspark.daemon import manager

#: All workers look the sources up by their names.
MODULES = ("pyspark_pg_wal", "pyspark_pg_changes", "pyspark.sql.pandas.types")
#: What tasks and plans read WAL with.
READERS = (
    "quorum_wal.spark.sources.pg_changes_readers",
    "quorum_wal.spark.sources.wal_batch",
    "quorum_wal.spark.sources.wal_stream",
    "quorum_wal.spark.inputs.safekeeper_input",
)
READING = ("pyspark.worker", "pyspark.sql.worker.plan_data_source_read")

if __name__ == "__main__":
    for module in (*MODULES, *(READERS if sys.argv[1] in READING else ())):
        import_module(module)
    gc.freeze()  # no collection writes to the pages that are shared
    manager()
