"""Registers the data sources in a session. If the package is installed, Spark also finds them by
itself (`pyspark_pg_wal.py`, `pyspark_pg_changes.py`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(session: SparkSession) -> None:
    """Makes `format("pg_wal")` and `format("pg_changes")` available."""
    from quorum_wal.spark.sources.pg_changes import PgChangesDataSource
    from quorum_wal.spark.sources.pg_wal import PgWalDataSource

    session.dataSource.register(PgWalDataSource)
    session.dataSource.register(PgChangesDataSource)
