"""A running query that writes a lake, and how far it has read, from its own progress."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from quorum_wal.pgwal.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

#: Spark gives the process of a Python source 10 s to start (PythonWorkerFactory), which is too
#: little on a busy machine; its job is then started again.
LATE_WORKER = "Python worker failed to connect back"


class LakeQuery:
    """Started with its checkpoint, and again if Spark did not wait for its own processes. The tests
    prove exactly once, so a restart may not hide a defect."""

    def __init__(self, writer: DataStreamWriter) -> None:
        self._writer = writer
        self._query = writer.start()

    def end_lsn(self) -> int:
        """Of its last batch; 0 before the first one. A query that has failed fails the test."""
        failure = self._query.exception()
        if failure is not None and LATE_WORKER in str(failure):
            self._query = self._writer.start()
        last = self._query.lastProgress
        assert self._query.isActive, self._query.exception()
        offset = json.loads(last.json)["sources"][0]["endOffset"] if last else None
        return Lsn.parse(offset["lsn"]) if offset else 0

    def stop(self) -> None:
        self._query.stop()
