"""What a stream of `pg_changes` or `pg_wal` reports of itself: its lag, and its rows by kind.

    lastProgress["sources"][0]["latestOffset"]      {"lsn": "0/5A2B3C8", "lag_bytes": "1048576"}
    lastProgress["observedMetrics"]["pg_changes"]   rows, unknown, commit_time_us, and the tables

The source reports the first one itself (`sources/wal_stream.py`). PySpark does not let a source of
Python add other metrics, so the rows are counted by an observation in the query (`observed`), and
Spark computes it while it runs the query. `log_progress` writes both to the log, a line a batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import structlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress

log = structlog.get_logger()

#: the name of the observation
NAME = "pg_changes"


def observed(changes: DataFrame, tables: Iterable[str] = ()) -> DataFrame:
    """The same rows, counted: `rows`, `unknown` (rows that could not be decoded, with
    on_unknown=pass), `commit_time_us` of the newest row (microseconds since 1970), and the rows of
    each of `tables`, written schema.table."""
    from pyspark.sql import functions as F

    columns = [
        F.count(F.lit(1)).alias("rows"),
        F.count_if((F.col("operation") == "unknown") | F.col("detail").isNotNull()).alias(
            "unknown"
        ),
        F.max(F.unix_micros("commit_time")).alias("commit_time_us"),
    ]
    name = F.concat_ws(".", F.col("schema"), F.col("table"))
    columns += [F.count_if(name == table).alias(table) for table in tables]
    return changes.observe(NAME, *columns)


def log_progress(session: SparkSession) -> None:
    """Logs the progress of all streams of the session that read our sources."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class _Listener(StreamingQueryListener):
        def onQueryStarted(self, event: Any) -> None:
            """The first batch reports its progress."""

        def onQueryProgress(self, event: Any) -> None:
            values = progress_values(event.progress)
            if values is not None:
                log.info("batch", stream=event.progress.name or str(event.progress.id), **values)

        def onQueryIdle(self, event: Any) -> None:
            """Its lag has not changed."""

        def onQueryTerminated(self, event: Any) -> None:
            """Spark reports the error of the query."""

    session.streams.addListener(_Listener())


def progress_values(progress: StreamingQueryProgress) -> dict[str, Any] | None:
    """`batch`, `lag_bytes` of all our sources, and what `observed` has counted, with `lag_seconds`
    instead of `commit_time_us`. None if no source is ours."""
    latest = [_offset(source.latestOffset) for source in progress.sources]
    lags = [int(offset["lag_bytes"]) for offset in latest if "lag_bytes" in offset]
    if not lags:
        return None
    values: dict[str, Any] = {"batch": progress.batchId, "lag_bytes": sum(lags)}
    counted = progress.observedMetrics.get(NAME)
    if counted is not None:
        values |= counted.asDict()
        commit_time_us = values.pop("commit_time_us", None)
        if commit_time_us is not None:
            age_seconds = datetime.now(UTC).timestamp() - commit_time_us / 1_000_000
            values["lag_seconds"] = round(age_seconds, 3)
    return values


def _offset(text: str | None) -> Mapping[str, Any]:
    """An offset of a source as Spark shows it. Offsets of other sources may have any form."""
    try:
        offset = json.loads(text or "null")
    except ValueError:
        return {}
    return offset if isinstance(offset, dict) else {}
