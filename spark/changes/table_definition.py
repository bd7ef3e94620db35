"""A table's definition as JSON, for rows with operation `schema`.

    {"schema": "public", "table": "orders_1", "kind": "table",
     "columns": [{"number": 1, "name": "id", "type": "integer", "not_null": true}, …],
     "key": ["id"], "partition_of": "public.orders"}

A column keeps its number when it is renamed. A column that is new has the "missing_value" that the
rows before it have from now on; it is omitted if that is NULL. A column of an enum type has its
labels in their order. Types are named as `format_type()` names them. Source: Postgres
`format_type.c`.
"""

from __future__ import annotations

import json
from typing import Any

from quorum_wal.spark.changes.catalog import ARRAY, DOMAIN, ENUM, Table
from quorum_wal.spark.changes.catalog_rows import AttributeRow
from quorum_wal.spark.changes.catalog_state import CatalogState

_NAMES = {
    16: "boolean", 20: "bigint", 21: "smallint", 23: "integer", 700: "real",
    701: "double precision", 1042: "character", 1043: "character varying",
    1083: "time without time zone", 1114: "timestamp without time zone",
    1184: "timestamp with time zone", 1186: "interval", 1266: "time with time zone",
    1560: "bit", 1562: "bit varying", 1700: "numeric",
}  # fmt: skip
_VARLENA_HEADER = 4
_LENGTHS = (1042, 1043)
_TIMES = (1083, 1114, 1184, 1266)
_BITS = (1560, 1562)
_NUMERIC, _BPCHAR = 1700, 1042
_KINDS = {"r": "table", "p": "partitioned table"}


Definition = dict[str, Any]


def definition_of(state: CatalogState, oid: int) -> Definition | None:
    """None if rows of the relation are not shown. Of the new heap of a rewrite, the definition of
    the rewritten table with the new columns."""
    table = state.table(oid)
    if table is None:
        return None
    row = state.classes[table.oid]
    attributes = state.attributes.get(oid, {})
    found: Definition = {
        "schema": table.schema,
        "table": table.name,
        "kind": _KINDS[row.relkind],
        "columns": [
            _column(state, attributes[attnum])
            for attnum in sorted(attributes)
            if not attributes[attnum].attisdropped
        ],
        "key": [table.columns[number].name for number in table.key],
    }
    parents = [state.classes[each] for each in state.parents_of(table.oid)]
    if parents and parents[0].relkind == "p":
        found["partition_of"] = state.name_of(parents[0])
    elif parents:
        found["inherits"] = [state.name_of(each) for each in parents]
    return found


def definition_json(
    definition: Definition | None, before: Definition | None, table: Table | None
) -> str | None:
    """`before` is the earlier definition; columns that it lacks get the value of older rows."""
    if definition is None:
        return None
    known = {column["number"] for column in before["columns"]} if before else None
    columns = []
    for column in definition["columns"]:
        missing = table.columns[column["number"] - 1].missing_json if table else None
        if known is not None and column["number"] not in known and missing is not None:
            column = {**column, "missing_value": json.loads(missing)}
        columns.append(column)
    return json.dumps({**definition, "columns": columns}, ensure_ascii=False)


def _column(state: CatalogState, row: AttributeRow) -> dict[str, Any]:
    column: dict[str, Any] = {
        "number": row.attnum,
        "name": row.attname,
        "type": type_text(state, row.atttypid, row.atttypmod),
        "not_null": row.attnotnull,
    }
    if labels := _labels(state, row.atttypid):
        column["labels"] = labels
    return column


def type_text(state: CatalogState, oid: int, typmod: int) -> str:
    found = state.type(oid)
    if found is None:
        return str(oid)
    if found.kind == ARRAY:
        element = state.type(found.of_oid)
        is_whole = element is not None and element.kind != ARRAY
        return f"{type_text(state, found.of_oid, typmod) if is_whole else found.of_oid}[]"
    name = _NAMES.get(oid, found.name)
    if typmod < 0:
        return "bpchar" if oid == _BPCHAR else name
    if oid in _LENGTHS:
        return f"{name}({typmod - _VARLENA_HEADER})"
    if oid in _BITS:
        return f"{name}({typmod})"
    if oid in _TIMES:
        first, _, rest = name.partition(" ")
        return f"{first}({typmod}) {rest}"
    if oid == _NUMERIC:
        scale = ((typmod - _VARLENA_HEADER & 0x7FF) ^ 1024) - 1024
        return f"{name}({typmod - _VARLENA_HEADER >> 16 & 0xFFFF},{scale})"
    return name


def _labels(state: CatalogState, oid: int) -> list[str]:
    """The labels of an enum, also of a domain or an array of it."""
    found, seen = state.type(oid), {oid}
    while found is not None and found.kind in (ARRAY, DOMAIN) and found.of_oid not in seen:
        oid = found.of_oid
        seen.add(oid)
        found = state.type(oid)
    if found is None or found.kind != ENUM:
        return []
    rows = state.labels.get(oid, {}).values()
    return [row.enumlabel for row in sorted(rows, key=lambda row: row.enumsortorder)]
