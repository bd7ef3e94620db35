"""Options of `pg_changes`: the catalog, the table, and the options of `pg_wal` not about records.

Law: an option without an effect is an error, as in `input_options.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from quorum_wal.spark.changes.catalog import load_catalog
from quorum_wal.spark.changes.catalog_snapshot import take_catalog
from quorum_wal.spark.changes.change_reader import ChangeOptions
from quorum_wal.spark.errors import OptionError
from quorum_wal.spark.sources.input_options import InputOptions, parse_options

#: only of this source
CHANGE_OPTIONS = ("catalog", "dsn", "table")
#: only of `pg_wal`: they are about records
_RECORD_OPTIONS = ("columns", "rmgr", "relation", "database", "xid")


def parse_change_options(options: Mapping[str, str]) -> ChangeOptions:
    """The catalog from a file, or read now from `dsn`, which also refreshes it. Raises OptionError,
    CatalogError."""
    given = {name.lower(): text.strip() for name, text in options.items()}
    dsn, paths = given.get("dsn"), given.get("catalog")
    if not dsn and not paths:
        raise OptionError(
            "neither catalog nor dsn is given",
            hint="sk catalog snapshot creates a catalog; dsn reads one when the query starts.",
        )
    refresh = partial(take_catalog, dsn) if dsn else None
    catalog = load_catalog(paths) if paths else take_catalog(dsn or "")
    table = catalog.table_named(given["table"]) if given.get("table") else None
    return ChangeOptions(catalog, table, refresh)


def parse_input_options(options: Mapping[str, str], *, is_stream: bool = False) -> InputOptions:
    """The options of the WAL input. Raises OptionError."""
    for name in options:
        if name.lower() in _RECORD_OPTIONS:
            raise OptionError(f'option "{name}" is only for pg_wal', hint="Use table=.")
    return parse_options(options, known=CHANGE_OPTIONS, is_stream=is_stream)
