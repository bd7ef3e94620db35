"""Option `columns`: the columns of the WAL that a query needs. Spark does not report them.

A module of its own, because Spark asks for the schema in a separate process, which should not load
the modules that read WAL.
"""

from __future__ import annotations

from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.records.wal_schema import DEFAULT_COLUMNS, schema_of


def parse_columns(text: str | None) -> tuple[str, ...]:
    """Comma-separated names; None: the default columns. Raises OptionError."""
    if text is None:
        return DEFAULT_COLUMNS
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError("option columns names no column")
    schema_of(names)
    return names
