"""Python imports this module when it starts, if its folder is in PYTHONPATH. conftest.py adds the
folder for the tests' Java and its children.

Spark's daemons of Python workers then import the modules of our sources before they fork a worker
for a task, and for each step of a plan. To import them takes 1 s of a processor in each, which is
most of its work. Drivers that are processes of their own start without this module.
"""

from __future__ import annotations

import gc
import sys
from importlib import import_module

DAEMON = "pyspark.daemon"
MODULES = (
    "pyspark_pg_wal",
    "pyspark_pg_changes",
    "quorum_wal.spark.sources.change_batch",
    "quorum_wal.spark.sources.change_stream",
    "quorum_wal.spark.sources.wal_batch",
    "quorum_wal.spark.inputs.safekeeper_input",
)

if DAEMON in sys.orig_argv:
    for module in MODULES:
        import_module(module)
    gc.freeze()  # no collection writes to the pages that workers share
