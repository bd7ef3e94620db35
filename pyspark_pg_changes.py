"""Spark looks for modules of this name, and registers the source that it finds in them."""

from quorum_wal.spark.sources.pg_changes import PgChangesDataSource as DefaultSource

__all__ = ["DefaultSource"]
