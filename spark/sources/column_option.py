"""Option `columns`: which columns of the WAL a query wants, since Spark does not tell its sources.

Apart from the other options, because Spark asks for the schema in a process of its own, which
should not wait for all that reads WAL to be loaded.
"""

from __future__ import annotations

from spark.errors import OptionError
from spark.records.wal_schema import DEFAULT_COLUMNS, schema_of


def parse_columns(text: str | None) -> tuple[str, ...]:
    """Names with commas between them; None: the default. Raises OptionError."""
    if text is None:
        return DEFAULT_COLUMNS
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError("option columns names no column")
    schema_of(names)
    return names
