"""`replay-table`: a table at an LSN or a time, from a base and the changes after it.

    base       the rows that a snapshot saw                          (table_base.py)
    changes    of transactions that the snapshot did not see, up to the requested moment
    state      for each key, the row after these changes in commit order

Laws. The snapshot decides which transactions had committed, not LSNs. A change that could not be
decoded, or lost WAL, is an error, because the table might be wrong. So is a change of the
definition that gives the base's rows other names or values: a renamed table or column, a dropped
table, a new column with a default, another type without a rewrite. The state at an LSN includes all
transactions whose commit record starts before it. The state at a time includes those whose commit
time is before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quorum_wal.pgwal.lsn import format_lsn
from quorum_wal.spark.changes.catalog import Table
from quorum_wal.spark.changes.change_schema import Note
from quorum_wal.spark.changes.datum import (
    BOOL,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    OID,
    Datums,
)
from quorum_wal.spark.errors import UndecodedChange
from quorum_wal.spark.jobs.table_base import Snapshot, TableBase, read_base

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: the types of JSON's numbers and words; other values remain text, as row_to_json() prints them
_TYPES = {
    BOOL: "boolean", INT2: "smallint", INT4: "int", INT8: "bigint", OID: "bigint",
    FLOAT4: "float", FLOAT8: "double",
}  # fmt: skip

#: An insert replaces the row, and a delete removes it. An update changes the columns that it has,
#: in the row of the old key: the WAL does not have an unchanged TOASTed value. Keys that are
#: changed into each other form a family, which is folded together.
_STATE = """
WITH events AS (
    SELECT {key_of_row} AS key, NULL AS old_key, -1L AS commit_lsn, -1L AS lsn,
           0 AS seq, 'insert' AS operation, row
    FROM base
    UNION ALL
    SELECT {key_of_new}, CASE WHEN old IS NULL THEN NULL ELSE {key_of_old} END, commit_lsn, lsn,
           seq, operation, new
    FROM changes WHERE operation IN ('insert', 'update')
    UNION ALL
    SELECT {key_of_key}, NULL, commit_lsn, lsn, seq, operation, NULL
    FROM changes WHERE operation = 'delete'
), truncates AS (
    SELECT max(struct(commit_lsn, lsn, seq)) AS last FROM changes WHERE operation = 'truncate'
), kept AS (
    SELECT coalesce(family, events.key) AS family, events.*
    FROM events CROSS JOIN truncates LEFT JOIN families ON families.key = events.key
    WHERE last IS NULL OR struct(events.commit_lsn, events.lsn, events.seq) > last
), folded AS (
    SELECT aggregate(
        array_sort(collect_list(struct(commit_lsn, lsn, seq, operation, key, old_key, row))),
        CAST(MAP() AS MAP<STRING, MAP<STRING, STRING>>),
        (state, event) -> map_concat(
            map_filter(state, (key, _) ->
                key <> event.key AND key <> coalesce(event.old_key, event.key)),
            CASE event.operation
                WHEN 'delete' THEN CAST(MAP() AS MAP<STRING, MAP<STRING, STRING>>)
                WHEN 'insert' THEN map(event.key, {event_row})
                ELSE map(event.key, map_concat(
                    map_filter(
                        coalesce(
                            try_element_at(state, coalesce(event.old_key, event.key)),
                            CAST(MAP() AS MAP<STRING, STRING>)),
                        (name, _) -> NOT map_contains_key({event_row}, name)),
                    {event_row}))
            END)) AS state
    FROM kept GROUP BY family
), rows AS (SELECT explode(map_values(state)) AS state FROM folded)
SELECT {columns} FROM rows
"""
_EVENT_ROW = "from_json(event.row, 'MAP<STRING, STRING>')"

#: Notes have no transaction. The snapshot saw the transactions that began before the base.
_CONCERNING_NOTE = f"(xid IS NULL AND seq <> {Note.INCOMPLETE.value})"

_MOVES = """
SELECT DISTINCT {key_of_old} AS old_key, {key_of_new} AS key FROM changes
WHERE operation = 'update' AND old IS NOT NULL AND {key_of_old} <> {key_of_new}
"""


@dataclass(frozen=True, slots=True)
class ReplayedTable:
    """`frame` has the table's columns."""

    base: TableBase
    frame: DataFrame


def replay_table(
    session: SparkSession, base: Path, changes: DataFrame, table: Table, datums: Datums
) -> ReplayedTable:
    """`changes` are rows of `pg_changes` with on_unknown=pass, from the base's `lsn` to the
    requested moment. Raises CatalogError, UndecodedChange."""
    found = read_base(base)
    name = f"{table.schema}.{table.name}"
    of_table = f"schema = '{escaped(table.schema)}' AND table = '{escaped(table.name)}'"
    # A file that is not in the catalog may belong to this table; after a TRUNCATE it does.
    unseen_of_all = changes.where(f"({is_unseen(found.snapshot)}) OR {_CONCERNING_NOTE}")
    _check_definitions(unseen_of_all, table)
    unseen = unseen_of_all.where(f"{of_table} OR table IS NULL").persist()
    try:
        _check_decoded(unseen, name)
    except UndecodedChange:
        unseen.unpersist()
        raise
    unseen.createOrReplaceTempView("changes")
    session.read.parquet(str(base)).createOrReplaceTempView("base")
    keys = {f"key_of_{name}": _key(name, found.key) for name in ("row", "new", "key", "old")}
    moves = [(row.old_key, row.key) for row in session.sql(_MOVES.format(**keys)).collect()]
    families = session.createDataFrame(families_of(moves), "key string, family string")
    families.createOrReplaceTempView("families")
    columns = ", ".join(_typed(table, datums))
    return ReplayedTable(
        found, session.sql(_STATE.format(**keys, event_row=_EVENT_ROW, columns=columns))
    )


def families_of(moves: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """(key, family) of all keys that updates change into each other, directly or in steps. Such
    changes are rare, so the driver collects them."""
    parents: dict[str, str] = {}

    def family(key: str) -> str:
        while (parent := parents.setdefault(key, key)) != key:
            parents[key] = key = parents[parent]
        return key

    for old_key, key in moves:
        parents[family(key)] = family(old_key)
    return [(key, family(key)) for key in list(parents)]


def is_unseen(snapshot: Snapshot) -> str:
    """SQL: whether the snapshot did not see transaction `xid`, a nearby one of 32 bits."""
    low = snapshot.xmax % (1 << 32)
    distance = f"(pmod(xid - {low} + 2147483648, 4294967296) - 2147483648)"
    running = ", ".join(str(xid % (1 << 32)) for xid in snapshot.running)
    return f"{distance} >= 0" + (f" OR xid IN ({running})" if running else "")


def _check_decoded(changes: DataFrame, table: str) -> None:
    row = changes.where("operation = 'unknown' OR detail IS NOT NULL").first()
    if row is not None:
        raise UndecodedChange(
            f"a change at {format_lsn(row.lsn)} cannot be replayed on {table}: {row.detail}",
            hint="If a file is unknown, also name a newer catalog: --catalog OLD,NEW. With "
            "wal_level = logical the WAL has complete rows.",
        )


def _check_definitions(changes: DataFrame, table: Table) -> None:
    """Definitions change rarely, so the driver collects them. Raises UndecodedChange."""
    wanted = table.schema, table.name
    rewritten = "truncate"
    found = changes.where(f"operation IN ('schema', '{rewritten}')")
    rows = found.orderBy("commit_lsn", "lsn").collect()
    rewrites = {
        (row.commit_lsn, row.schema, row.table) for row in rows if row.operation == rewritten
    }
    for row in rows:
        if row.operation == rewritten:
            continue
        old, new = (json.loads(text) if text else None for text in (row.old, row.new))
        names = [(each["schema"], each["table"]) for each in (old, new) if each is not None]
        if old is None or wanted not in names:
            continue
        is_rewritten = (row.commit_lsn, row.schema, row.table) in rewrites
        reason = unreplayed(old, new, is_rewritten=is_rewritten)
        if reason is not None:
            raise UndecodedChange(
                f"a change of the definition of {table} at {format_lsn(row.lsn)} cannot be "
                f"replayed: {reason}",
                hint="Take a base of the table after that change.",
            )


def unreplayed(
    old: dict[str, Any], new: dict[str, Any] | None, *, is_rewritten: bool
) -> str | None:
    """Why the rows before a change of the definition do not fit the rows after it."""
    if new is None:
        return "the table was dropped"
    if (old["schema"], old["table"]) != (new["schema"], new["table"]):
        return f"the table was renamed to {new['schema']}.{new['table']}"
    known = {column["number"]: column for column in old["columns"]}
    for column in new["columns"]:
        before = known.get(column["number"])
        if before is None:
            if "missing_value" in column and not is_rewritten:
                return f"column {column['name']} was added with a value for older rows"
        elif before["name"] != column["name"]:
            return f"column {before['name']} was renamed to {column['name']}"
        elif before["type"] != column["type"] and not is_rewritten:
            return f"the type of column {column['name']} was changed to {column['type']}"
    return None


def _key(column: str, key: tuple[str, ...]) -> str:
    """The values of the primary key, from a row's JSON, as one text."""
    parts = ", ".join(f"{_column(column)}['{escaped(name)}']" for name in key)
    return f"to_json(array({parts}))"


def _column(name: str) -> str:
    return f"from_json(`{name}`, 'MAP<STRING, STRING>')"


def _typed(table: Table, datums: Datums) -> list[str]:
    """The columns of the result."""
    found = []
    for column in table.columns:
        if column.is_dropped:
            continue
        value, oid = f"state['{escaped(column.name)}']", datums.base_oid(column.type_oid)
        kind = _TYPES.get(oid)
        if oid == NUMERIC and column.typmod >= 4 and (column.typmod - 4) >> 16 <= 38:
            kind = f"decimal({(column.typmod - 4) >> 16}, {(column.typmod - 4) & 0x7FF})"
        quoted = column.name.replace("`", "``")
        found.append(f"CAST({value} AS {kind}) AS `{quoted}`" if kind else f"{value} AS `{quoted}`")
    return found


def escaped(text: str) -> str:
    """Escapes text for a literal of Spark SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")
