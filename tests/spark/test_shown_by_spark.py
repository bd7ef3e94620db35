"""What a user of Spark sees of a query: errors, the progress of a stream, messages, events."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException
from structlog.testing import capture_logs
from wal_rows import MIB, segment

from quorum_wal.pg_fixtures.waiting import wait_until
from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.errors import UndecodedChange
from quorum_wal.spark.progress import log_progress, observed, progress_values
from quorum_wal.spark.register import register
from quorum_wal.spark.reported_errors import short_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

#: of the message in `server_wal`
MESSAGE_BYTES = 2_500_000

UNDECODED = r"^WAL at 0/\w+ could not be decoded"


def batch(session: SparkSession, wal: Path, catalog: Path, **options: Any) -> DataFrame:
    return session.read.format("pg_changes").options(**given(wal, catalog, **options)).load()


def stream(session: SparkSession, wal: Path, catalog: Path, **options: Any) -> DataFrame:
    return session.readStream.format("pg_changes").options(**given(wal, catalog, **options)).load()


def given(wal: Path, catalog: Path, **options: Any) -> dict[str, str]:
    return {"path": str(wal), "catalog": str(catalog), **options}


def run(frame: DataFrame, work: Path) -> StreamingQuery:
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(work))
    return writer.trigger(availableNow=True).start()


def test_sources_are_registered_once(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark logs a warning for every source that is replaced."""
    registered: list[Any] = []
    kind = type(session.dataSource)
    monkeypatch.setattr(kind, "register", lambda _, source: registered.append(source))
    register(session)
    assert registered == []


def test_the_error_of_a_batch(
    session: SparkSession, server_wal: Path, server_catalog: Path
) -> None:
    with pytest.raises(PySparkException) as shown:
        batch(session, server_wal, server_catalog).count()
    with pytest.raises(UndecodedChange, match=UNDECODED) as raised, short_errors():
        raise shown.value
    text = str(shown.value)
    assert "Traceback" not in text
    assert "UndecodedChange: WAL at 0/" in text
    assert "could not be decoded: the WAL begins at 0/" in text
    assert "hint: Begin at least 15 seconds later, with start_lsn or start_time" in text
    assert raised.value.hint.startswith("Begin at least 15 seconds later")
    assert "\n" not in str(raised.value)


def test_the_error_of_a_stream(
    session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    query = run(stream(session, server_wal, server_catalog), tmp_path / "checkpoint")
    with pytest.raises(UndecodedChange, match=UNDECODED), short_errors():
        query.awaitTermination(120)


def test_the_progress_of_a_stream(
    session: SparkSession, server_wal: Path, server_catalog: Path, tmp_path: Path
) -> None:
    frame = stream(
        session, server_wal, server_catalog, on_unknown="pass", max_bytes_per_batch="3MB"
    )
    with capture_logs() as logs:
        log_progress(session)
        query = run(observed(frame, ["public.t"]), tmp_path / "checkpoint")
        query.awaitTermination(120)
        found = [values for each in query.recentProgress if (values := progress_values(each))]
        wait_until(lambda: len(batches_of(logs)) >= len(found), 60, "a line for each batch")
    assert len(found) > 1
    assert found[0]["lag_bytes"] > 0 == found[-1]["lag_bytes"]
    rows = batch(session, server_wal, server_catalog, on_unknown="pass").collect()
    assert sum(each["rows"] for each in found) == len(rows)
    assert sum(each["unknown"] for each in found) == sum(r.operation == "unknown" for r in rows) > 0
    assert sum(each["public.t"] for each in found) == sum(row.table == "t" for row in rows) > 0
    assert 0 < found[-1]["lag_seconds"] < 3600


def batches_of(logs: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [line for line in logs if line["event"] == "batch"]


def test_messages_and_events(session: SparkSession, server_wal: Path, server_catalog: Path) -> None:
    """Of the WAL before the switch, which has all kinds of them."""
    options = {"on_unknown": "dead_letter", "dead_letter_path": str(server_wal.parent / "letters")}
    options["end_lsn"] = format_lsn(int(segment(server_wal, 5).name[-8:], 16) * MIB)
    rows = batch(session, server_wal, server_catalog, messages="true", **options).cache()
    (message,) = rows.where("operation = 'message'").collect()
    assert json.loads(message.new)["content"] == "x" * MESSAGE_BYTES
    options |= {"messages": "true", "envelope": "debezium", "topic_prefix": "shop"}
    events = batch(session, server_wal, server_catalog, **options)
    kinds = events.selectExpr("topic", "get_json_object(value, '$.op') AS op")
    counted = {(r.topic, r.op): r["count"] for r in kinds.groupBy("topic", "op").count().collect()}
    by_operation = {r.operation: r["count"] for r in rows.groupBy("operation").count().collect()}
    assert counted == {
        ("shop.public.t", "c"): by_operation["insert"],
        ("shop.public.t", "u"): by_operation["update"],
        ("shop.public.t", "d"): by_operation["delete"],
        ("shop.message", "m"): 1,
    }
