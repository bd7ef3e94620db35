"""Python imports this module when it starts, if its folder is in PYTHONPATH. spark-env.sh adds the
folder for the tests' Java and its children.

Spark puts a zip of PySpark in front of the installed one, which is the same. Nothing keeps what
Python compiles of a zip: each process would compile it again, 0.6 s of a processor.

The daemons of the session that the tests share also import the modules of our sources and read some
WAL, before they fork a worker for a task and for each step of a plan. To import them takes 1 s in
each, which is most of its work; to load the compiled loops for the first read takes 0.2 s more. A
daemon that looks for sources forks once. A driver that is a process of its own starts as a user's
does.
"""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

ZIPS = "/pyspark/python/lib/"
DAEMON = "pyspark.daemon"
FORKS_ONCE = "pyspark.sql.worker.lookup_data_sources"
#: the folder of the WAL to read
PRELOADED = "PYTHON_WORKERS_PRELOADED"
MODULES = (
    "pyspark_pg_wal",
    "pyspark_pg_changes",
    "quorum_wal.spark.sources.change_batch",
    "quorum_wal.spark.sources.change_stream",
    "quorum_wal.spark.sources.wal_batch",
    "quorum_wal.spark.inputs.safekeeper_input",
)

# To import makes many objects and no garbage. To look for it takes 0.1 s of each process.
gc.set_threshold(100_000)
sys.path[:] = [path for path in sys.path if ZIPS not in path]
if PRELOADED in os.environ and DAEMON in sys.orig_argv and FORKS_ONCE not in sys.orig_argv:
    for module in MODULES:
        import_module(module)
    reader = import_module("quorum_wal.spark.inputs.folder_input")
    reader.FolderInput(os.environ[PRELOADED]).extent()
    gc.freeze()  # no collection writes to the pages that workers share
