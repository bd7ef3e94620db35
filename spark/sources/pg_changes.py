"""`format("pg_changes")`: the changes of a database's rows, decoded from the physical WAL.

    changes = spark.read.format("pg_changes").option("catalog", "shop.json")
    changes.option("path", "/srv/archive").load()
    changes.option("path", "/srv/archive").option("table", "public.orders").load()

The options, the planning and the offsets are those of `pg_wal`; a task's range is that of the
commits, and where its transactions began it finds out by itself (`change_reader.py`). Law: no
slot of the stream lets go of WAL that a transaction which is still open has begun in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from spark.changes.catalog import Catalog, load_catalog
from spark.changes.catalog_snapshot import take_catalog
from spark.changes.change_batches import ChangeBatches
from spark.changes.change_reader import ChangeOptions, read_changes, restart_lsn
from spark.errors import OptionError
from spark.inputs.wal_reader import OnDamage
from spark.records.wal_filter import WalFilter
from spark.sources.input_options import InputOptions, parse_options
from spark.sources.range_plan import plan_range, split
from spark.sources.shown_errors import shown_errors
from spark.sources.wal_stream import WalStreamReader
from spark.sources.wal_task import WalTask

#: of this source alone
CHANGE_OPTIONS = ("catalog", "dsn", "table")
#: of `pg_wal` alone: they are of records
_RECORD_OPTIONS = ("columns", "rmgr", "relation", "database", "xid")


class PgChangesDataSource(DataSource):
    """Made by Spark with the options of the query."""

    @classmethod
    def name(cls) -> str:
        return "pg_changes"

    def schema(self) -> StructType:
        with shown_errors():
            changes = parse_change_options(self.options)
            schema = ChangeBatches(changes.catalog, changes.table).schema
            return from_arrow_schema(schema, prefer_timestamp_ntz=True)

    def reader(self, schema: StructType) -> DataSourceReader:
        with shown_errors():
            return ChangeBatchReader(
                _input_options(self.options), parse_change_options(self.options)
            )

    def streamReader(self, schema: StructType) -> ChangeStreamReader:
        with shown_errors():
            return ChangeStreamReader(
                _input_options(self.options, is_stream=True), parse_change_options(self.options)
            )


def parse_change_options(options: Mapping[str, str]) -> ChangeOptions:
    """A catalog in a file, or taken now from `dsn`, which also refreshes it. Raises OptionError,
    CatalogError."""
    given = {name.lower(): text.strip() for name, text in options.items()}
    dsn, paths = given.get("dsn"), given.get("catalog")
    if not dsn and not paths:
        raise OptionError(
            "neither catalog nor dsn is given",
            hint="sk catalog snapshot makes a catalog; dsn takes one when the query starts.",
        )
    refresh = partial(take_catalog, dsn) if dsn else None
    catalog: Catalog = load_catalog(paths) if paths else take_catalog(dsn or "")
    table = catalog.table_named(given["table"]) if given.get("table") else None
    return ChangeOptions(catalog, table, refresh)


def _input_options(options: Mapping[str, str], *, is_stream: bool = False) -> InputOptions:
    for name in options:
        if name.lower() in _RECORD_OPTIONS:
            raise OptionError(f'option "{name}" is of pg_wal', hint="Here it is table=.")
    return parse_options(options, known=CHANGE_OPTIONS, is_stream=is_stream)


class ChangeBatchReader(DataSourceReader):
    """Planned on the driver; `read` runs on the executors."""

    def __init__(self, options: InputOptions, changes: ChangeOptions) -> None:
        self._options = options
        self._changes = changes

    def partitions(self) -> Sequence[InputPartition]:
        with shown_errors():
            options = self._options
            facts = options.wal_input.facts()
            whole = plan_range(options, facts)
            is_whole = options.on_damage is OnDamage.STOP
            parts = [whole] if is_whole else split(whole, facts, options.partition_bytes)
            return [WalTask(part, WalFilter()) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._changes, partition)


class ChangeStreamReader(WalStreamReader):
    """As `pg_wal` streams, but for what is read, and for what a slot holds."""

    def __init__(self, options: InputOptions, changes: ChangeOptions) -> None:
        super().__init__(options)
        self._changes = changes
        self._held: tuple[int, int] | None = None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, self._changes, partition)

    def _hold(self, start_lsn: int) -> None:
        if self._slot is None:
            return
        if self._held is None or self._held[0] != start_lsn:
            self._held = start_lsn, restart_lsn(self._input, start_lsn, self._changes)
        super()._hold(self._held[1])


def _read(
    options: InputOptions, changes: ChangeOptions, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Its rows. Raises SparkWalError."""
    assert isinstance(partition, WalTask)
    with shown_errors():
        yield from read_changes(options.wal_input, partition.wal_range, changes, options.on_damage)
