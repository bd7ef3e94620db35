"""How far a running query has read, by what it says itself."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pgwal.lsn import Lsn

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery


def end_lsn(query: StreamingQuery) -> int:
    """Of its last batch; 0 before the first one. A query that has failed fails the test."""
    last = query.lastProgress
    assert query.isActive, query.exception()
    offset = json.loads(last.json)["sources"][0]["endOffset"] if last else None
    return Lsn.parse(offset["lsn"]) if offset else 0
