"""Registers the data sources in a session. If the package is installed, Spark also finds them by
itself (`pyspark_pg_wal.py`, `pyspark_pg_changes.py`).

Law: a source that Spark has already found is not registered again, because Spark logs a warning for
each one that is replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.spark.requirements import check_sources, is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Makes `format("pg_wal")` and `format("pg_changes")` available. Raises UnsupportedSpark."""
    check_sources()
    from pyspark.errors import AnalysisException

    from quorum_wal.spark.sources.pg_changes import PgChangesDataSource
    from quorum_wal.spark.sources.pg_wal import PgWalDataSource

    for source in (PgWalDataSource, PgChangesDataSource):
        if not _is_found(session, source.name()):
            try:
                session.dataSource.register(source)
            except AnalysisException as error:
                # A server of Spark Connect 4.0 refuses a source that it has found; newer ones
                # replace it.
                if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
                    raise


def _is_found(session: SparkSession, name: str) -> bool:
    """Whether Spark has a source of this name. A session of Spark Connect cannot ask its server:
    the answer is no, and the server may log its warning."""
    if is_connect(session):
        return False
    state = session._jsparkSession.sessionState()
    return bool(state.dataSourceManager().dataSourceExists(name))
