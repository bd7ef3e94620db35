"""Reads a mirror: all files of one table in one version.

    from quorum_wal.spark.mirror.reader import read_mirror

    orders = read_mirror(session, "/srv/mirror", "shop.orders")

Law: a table is read as one version has it; a version that is written meanwhile has no effect. The
files of a version stay for 15 minutes after a newer one exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorum_wal.objectstore.store import open_store
from quorum_wal.spark.errors import MirrorError
from quorum_wal.spark.mirror.table_columns import columns_of, schema_of
from quorum_wal.spark.mirror.version import Version, Versions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_mirror(
    session: SparkSession,
    url: str,
    table: str,
    store_options: dict[str, str] | None = None,
    version: Version | None = None,
) -> DataFrame:
    """The rows of `schema.table`; of a partitioned table, those of all its partitions. By default
    in the current version; name one to read several tables at the same commit.

    Spark reads the files itself: a URL like s3:// needs its connector, and its settings. Raises
    MirrorError, ObjectStoreError.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    versions = Versions(open_store(url, store_options))
    current = version or versions.newest()
    if current is None:
        raise MirrorError(
            f"{url} has no mirror, or its initial snapshot is not complete",
            hint="sk spark mirror makes one.",
        )
    is_text = versions.job().is_text
    schema = schema_of(columns_of(current.table(table).definition, is_text=is_text))
    spark_schema = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    root = url.rstrip("/").replace("s3://", "s3a://")
    paths = [f"{root}/{file.path}" for part in current.parts(table) for file in part.files]
    if not paths:
        return session.createDataFrame([], spark_schema)
    # The Parquet reader finds columns by their names, so the order in a partition is irrelevant.
    return session.read.schema(spark_schema).parquet(*paths)
