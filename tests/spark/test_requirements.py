"""An older Spark and a session of Spark Connect: one error that says what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.types import StructType

from quorum_wal.spark import requirements
from quorum_wal.spark.errors import UnsupportedSpark
from quorum_wal.spark.jobs.ingest import Ingest
from quorum_wal.spark.mirror.mirror import Mirror
from quorum_wal.spark.mirror.mirror_stream import MirrorSettings, MirrorStream
from quorum_wal.spark.register import register
from quorum_wal.spark.session import new_session
from quorum_wal.spark.sources.pg_changes import PgChangesDataSource
from quorum_wal.spark.sources.pg_wal import PgWalDataSource


class RemoteSession:
    """Lacks what only a classic session has."""


class RefusedSource:
    """What a server answers to a source that it has found, or to any other problem."""

    def __init__(self, condition: str) -> None:
        self._condition = condition

    def register(self, source: Any) -> None:
        error = AnalysisException("refused")
        error.getCondition = lambda: self._condition  # type: ignore[method-assign]
        raise error


def test_a_server_that_has_found_the_sources() -> None:
    """Spark 4.0 refuses to register them again."""
    session: Any = RemoteSession()
    session.dataSource = RefusedSource("DATA_SOURCE_ALREADY_EXISTS")
    register(session)
    session.dataSource = RefusedSource("PYTHON_DATA_SOURCE_ERROR")
    with pytest.raises(AnalysisException):
        register(session)


def lacks(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """This Spark appears not to have the module."""
    find_spec = requirements.find_spec
    monkeypatch.setattr(
        requirements, "find_spec", lambda name: None if name == module else find_spec(name)
    )


def test_spark_without_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, "pyspark.sql.datasource")
    message = f"Spark {pyspark.__version__} has no data sources in Python"
    remote: Any = RemoteSession()
    with pytest.raises(UnsupportedSpark, match=message):
        register(remote)
    with pytest.raises(UnsupportedSpark, match=message) as caught:
        new_session("old")
    assert "pip install" in caught.value.hint


@pytest.mark.parametrize("source", [PgWalDataSource, PgChangesDataSource])
def test_a_stream_on_spark_without_its_module(
    monkeypatch: pytest.MonkeyPatch, source: Any, server_wal: Path, server_catalog: Path
) -> None:
    lacks(monkeypatch, "pyspark.sql.streaming.datasource")
    options = {"path": str(server_wal)}
    if source is PgChangesDataSource:
        options["catalog"] = str(server_catalog)
    made = source(options)
    with pytest.raises(UnsupportedSpark, match=r"streams need Spark 4\.2 or newer") as caught:
        made.streamReader(StructType())
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]
    assert made.reader(StructType()).partitions()


def test_a_mirror_is_refused_before_its_snapshot(
    monkeypatch: pytest.MonkeyPatch, server_wal: Path, tmp_path: Path
) -> None:
    lacks(monkeypatch, "pyspark.sql.streaming.datasource")
    settings = MirrorSettings(str(tmp_path / "mirror"), {"path": str(server_wal)})
    with pytest.raises(UnsupportedSpark, match="streams need Spark"):
        MirrorStream(settings)
    assert not (tmp_path / "mirror").exists()


def test_jobs_with_rdds_in_a_session_of_spark_connect(tmp_path: Path) -> None:
    session: Any = RemoteSession()
    rows: Any = None
    with pytest.raises(UnsupportedSpark, match="a mirror needs a classic session"):
        Mirror(session, str(tmp_path / "mirror"))
    with pytest.raises(UnsupportedSpark, match="an ingest needs a classic session"):
        Ingest(session, rows, str(tmp_path / "lake"), {})
    assert not list(tmp_path.iterdir())


def test_a_command_needs_a_classic_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedSpark, match='"sc://host" is a server of Spark Connect'):
        new_session("x", "sc://host")
    with monkeypatch.context() as with_variable:
        with_variable.setenv("SPARK_REMOTE", "sc://host")
        with pytest.raises(UnsupportedSpark, match="but SPARK_REMOTE is set"):
            new_session("x")
    lacks(monkeypatch, "pyspark.core")
    with pytest.raises(UnsupportedSpark, match="the package pyspark-client has only Spark Connect"):
        new_session("x")
