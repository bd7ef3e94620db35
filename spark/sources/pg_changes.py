"""`format("pg_changes")`: the changes of a database's rows, decoded from the physical WAL.

    changes = spark.read.format("pg_changes").option("catalog", "shop.json")
    changes.option("path", "/srv/archive").load()
    changes.option("path", "/srv/archive").option("table", "public.orders").load()

`docs/changes.md` describes the rows and the options. Spark loads this module in many short
processes, also in those of `pg_wal`. So the decoder is imported only where it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from quorum_wal.spark.requirements import check_streams
from quorum_wal.spark.sources.shown_errors import shown_errors

if TYPE_CHECKING:
    from quorum_wal.spark.sources.change_stream import ChangeStreamReader


class PgChangesDataSource(DataSource):
    """Spark creates it with the options of the query."""

    @classmethod
    def name(cls) -> str:
        return "pg_changes"

    def schema(self) -> StructType:
        from quorum_wal.spark.changes.change_batches import ChangeBatches
        from quorum_wal.spark.changes.debezium_envelope import ENVELOPE_SCHEMA
        from quorum_wal.spark.sources.pg_changes_options import parse_change_options, parse_envelope

        with shown_errors():
            changes = parse_change_options(self.options)
            if parse_envelope(self.options, changes.catalog.database_name) is not None:
                return from_arrow_schema(ENVELOPE_SCHEMA)
            schema = ChangeBatches(changes.catalog, changes.table).schema
            return from_arrow_schema(schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        from quorum_wal.spark.sources.change_batch import ChangeBatchReader
        from quorum_wal.spark.sources.pg_changes_options import (
            parse_change_options,
            parse_envelope,
            parse_input_options,
        )

        with shown_errors():
            options = parse_input_options(self.options)
            changes = parse_change_options(self.options)
            envelope = parse_envelope(self.options, changes.catalog.database_name)
            return ChangeBatchReader(options, changes, envelope)

    def streamReader(self, schema: StructType) -> ChangeStreamReader:
        with shown_errors():
            check_streams()
            from quorum_wal.spark.sources.change_stream import ChangeStreamReader
            from quorum_wal.spark.sources.pg_changes_options import (
                parse_change_options,
                parse_envelope,
                parse_input_options,
            )

            options = parse_input_options(self.options, is_stream=True)
            changes = parse_change_options(self.options)
            envelope = parse_envelope(self.options, changes.catalog.database_name)
            return ChangeStreamReader(options, changes, envelope)
