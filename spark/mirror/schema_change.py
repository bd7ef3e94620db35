"""`column_sources`: where the columns of a table come from when its definition changes.

    before   1 id    2 note           3 state {new, paid}
    after    1 id    2 comment        3 state {open, paid}     4 weight missing_value 0
    sources  copy    copy column 2    copy, new -> open        0

Laws. Columns are the same if they have the same number. A change is allowed only if the new values
follow from the old ones without a server; every other one is an error, and the mirror must be begun
again. A rewritten table needs no sources: its rows come as inserts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from quorum_wal.spark.changes.table_definition import Definition
from quorum_wal.spark.errors import MirrorError

#: types that are stored in the same way and printed in the same way
_TEXTS = ("text", "character varying")


@dataclass(frozen=True, slots=True)
class ColumnSource:
    """A column of the new definition: the column `name` of the old one, with some of its texts
    replaced, which are in JSON arrays if `is_array`; or, if `name` is None, the constant `missing`
    as JSON, or NULL."""

    name: str | None
    missing: bytes | None = None
    labels: Mapping[str, str] | None = None
    is_array: bool = False

    def renamed(self, text: str | None) -> str | None:
        """A value with its labels replaced."""
        assert self.labels is not None
        if text is None or not self.is_array:
            return None if text is None else self.labels.get(text, text)
        return msgspec.json.encode(_renamed(msgspec.json.decode(text), self.labels)).decode()


def column_sources(old: Definition, new: Definition) -> list[ColumnSource]:
    """One for each column of `new`. Raises MirrorError."""
    before = {column["number"]: column for column in old["columns"]}
    return [_source(new, before.get(column["number"]), column) for column in new["columns"]]


def _source(
    table: Definition, before: dict[str, Any] | None, column: dict[str, Any]
) -> ColumnSource:
    if before is None:
        has_missing = "missing_value" in column
        return ColumnSource(
            None, msgspec.json.encode(column["missing_value"]) if has_missing else None
        )
    if not _is_castable(before["type"], column["type"]):
        raise _error(table, f"the type of column {column['name']} was changed from "
                            f"{before['type']} to {column['type']} without new rows")  # fmt: skip
    is_array = column["type"].endswith("[]")
    return ColumnSource(before["name"], None, _labels(table, before, column), is_array)


def _is_castable(old: str, new: str) -> bool:
    """Whether Postgres changes the type without a new file, and the values are the same."""
    if old == new:
        return True
    kinds = [name.partition("(")[0] for name in (old, new)]
    if all(kind in _TEXTS for kind in kinds):
        return True
    if all(kind.startswith("timestamp") for kind in kinds):
        return True
    # another length or precision: numeric(10,2), bit varying(8), interval(3)
    return kinds[0] == kinds[1] and not new.endswith("[]")


def _labels(
    table: Definition, before: dict[str, Any], column: dict[str, Any]
) -> dict[str, str] | None:
    """The labels of an enum that were renamed."""
    old, new = before.get("labels", []), column.get("labels", [])
    gone = [label for label in old if label not in new]
    if not gone or not new:
        return None
    if len(old) != len(new):
        raise _error(table, f"the labels of column {column['name']} were renamed and added at once")
    return {one: other for one, other in zip(old, new, strict=True) if one != other}


def _renamed(value: Any, labels: Mapping[str, str]) -> Any:
    """Arrays may have several dimensions, and NULL."""
    if isinstance(value, list):
        return [_renamed(each, labels) for each in value]
    return labels.get(value, value)


def _error(table: Definition, what: str) -> MirrorError:
    return MirrorError(
        f"a change of the definition of {table['schema']}.{table['table']} cannot be followed: "
        f"{what}",
        hint="Begin a new mirror in another folder after that change.",
    )
