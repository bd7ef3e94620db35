"""Options of `pg_changes`: those of `pg_wal` that are not of records, and which catalog and table.

Law: as of all options, one that would have no effect is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from spark.changes.catalog import load_catalog
from spark.changes.catalog_snapshot import take_catalog
from spark.changes.change_reader import ChangeOptions
from spark.errors import OptionError
from spark.sources.input_options import InputOptions, parse_options

#: of this source alone
CHANGE_OPTIONS = ("catalog", "dsn", "table")
#: of `pg_wal` alone: they are of records
_RECORD_OPTIONS = ("columns", "rmgr", "relation", "database", "xid")


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
    catalog = load_catalog(paths) if paths else take_catalog(dsn or "")
    table = catalog.table_named(given["table"]) if given.get("table") else None
    return ChangeOptions(catalog, table, refresh)


def parse_input_options(options: Mapping[str, str], *, is_stream: bool = False) -> InputOptions:
    """Which WAL. Raises OptionError."""
    for name in options:
        if name.lower() in _RECORD_OPTIONS:
            raise OptionError(f'option "{name}" is of pg_wal', hint="Here it is table=.")
    return parse_options(options, known=CHANGE_OPTIONS, is_stream=is_stream)
