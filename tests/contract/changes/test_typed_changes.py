"""`table=`: the same values as Arrow types; a value that no Arrow type can hold is reported."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pytest
from changed_logs import ChangedLog, LogOf
from decoding import Row, read_all
from pgoutput import exact_json

TABLES = (
    "public.kinds",
    "public.grown",
    "public.big",
    "public.whole",
    "other.plain",
    "public.by_index",
)


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("table", TABLES)
def test_same_as_json(changed_log: LogOf, table: str, is_compiled: bool) -> None:
    log = changed_log(18, "logical")
    as_json = [
        row
        for row in read_all(log)
        if f"{row['schema']}.{row['table']}" == table and row["operation"] != "schema"
    ]
    as_types = rows_of(log, table, is_compiled=is_compiled)
    assert as_types
    for one, other in zip(as_json, as_types, strict=True):
        where = f"{one['operation']} at {one['lsn']:X}"
        for name in ("lsn", "commit_lsn", "commit_time", "xid", "operation", "key", "ctid"):
            assert one[name] == other[name], where
        for name in ("new", "old"):
            assert_typed(exact_json(one[name]), other[name], other["detail"] or "", where)


def rows_of(log: ChangedLog, table: str, **options: Any) -> list[Row]:
    catalog = log.catalogs[0].merged(log.catalogs[1])
    rows = read_all(log, catalog, table=catalog.table_named(table), **options)
    return [row for row in rows if row["table"] is not None and row["operation"] != "schema"]


def assert_typed(expected: Any, found: Any, detail: str, where: str) -> None:
    assert (expected is None) == (found is None), where
    for name, value in (found or {}).items():
        if value is None and expected.get(name) is not None:
            assert f"column {name}: its value is outside" in detail, f"{where}: {name}"
        else:
            is_json = name in ("j", "jb") and value is not None
            shown = exact_json(value) if is_json else as_json_value(value, expected.get(name))
            assert shown == expected.get(name), f"{where}: {name}"


def as_json_value(value: Any, like: Any) -> Any:
    """As exact_json() has it. Text that holds JSON is parsed; floats are compared as numbers."""
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, bytes):
        return "\\x" + value.hex()
    if isinstance(value, datetime):
        return value if like is None else like if same_time(value, like) else value.isoformat()
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return like if value != value or float(like) == value or is_close(like, value) else value
    if isinstance(value, int | Decimal):
        return str(value)
    return exact_json(value) if isinstance(like, list | dict) else value


def same_time(value: datetime, text: str) -> bool:
    return value == datetime.fromisoformat(text)


def is_close(text: str, value: float) -> bool:
    """A float4 was printed with as many digits as it needs."""
    return abs(float(text) - value) <= abs(value) * 1e-6
