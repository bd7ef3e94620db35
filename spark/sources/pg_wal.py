"""`format("pg_wal")`: the WAL of a Postgres cluster, one row for each record.

    spark.read.format("pg_wal").option("path", "/srv/archive").load()
    spark.readStream.format("pg_wal").option("safekeepers", "sk1:5454,sk2:5454,sk3:5454").load()

`docs/spark.md` describes the rows and the options. Spark loads this module in many short processes,
so the modules that read WAL are imported only where they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from quorum_wal.spark.records.wal_schema import schema_of
from quorum_wal.spark.requirements import check_streams
from quorum_wal.spark.sources.column_option import parse_columns
from quorum_wal.spark.sources.shown_errors import shown_errors

if TYPE_CHECKING:
    from quorum_wal.spark.sources.wal_stream import WalStreamReader


class PgWalDataSource(DataSource):
    """Spark creates it with the options of the query."""

    @classmethod
    def name(cls) -> str:
        return "pg_wal"

    def schema(self) -> StructType:
        with shown_errors():
            columns = parse_columns(self.options.get("columns"))
            return from_arrow_schema(schema_of(columns), prefer_timestamp_ntz=False)

    def reader(self, schema: StructType) -> DataSourceReader:
        from quorum_wal.spark.sources.input_options import parse_options
        from quorum_wal.spark.sources.wal_batch import WalBatchReader

        with shown_errors():
            return WalBatchReader(parse_options(self.options))

    def streamReader(self, schema: StructType) -> WalStreamReader:
        with shown_errors():
            check_streams()
            from quorum_wal.spark.sources.input_options import parse_options
            from quorum_wal.spark.sources.wal_stream import WalStreamReader

            return WalStreamReader(parse_options(self.options, is_stream=True))
