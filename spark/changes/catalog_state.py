"""`CatalogState`: the rows of the system catalogs at one moment, and the tables that they describe.

    rows --apply(old, new)--> rows of the next moment            table(oid) --> Table

Pure. Law: from the rows of one snapshot it makes the same tables and types as the queries of
`catalog_snapshot.py`. Applying a change twice has no further effect.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeVar

from quorum_wal.spark.changes.catalog import ARRAY, CatalogRows, Column, Table, Type
from quorum_wal.spark.changes.catalog_rows import (
    AttributeRow,
    ClassRow,
    IndexRow,
    InheritsRow,
    LabelRow,
    NamespaceRow,
    RangeRow,
    Row,
    TypeRow,
)
from quorum_wal.spark.changes.datum import Datums
from quorum_wal.spark.changes.datum_array import Element, array_json

FIRST_NORMAL_OID = 16384
_ALIGN = {"c": 1, "s": 2, "i": 4, "d": 8}
_SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})
_TABLE_KINDS = frozenset("rp")
_VIRTUAL = "v"

_Part = TypeVar("_Part")


class CatalogState:
    """Rows by their keys; those of a relation or a type together."""

    def __init__(self, rows: CatalogRows) -> None:
        self.classes: dict[int, ClassRow] = {}
        self.attributes: dict[int, dict[int, AttributeRow]] = {}
        self.types: dict[int, TypeRow] = {}
        self.labels: dict[int, dict[int, LabelRow]] = {}
        self.namespaces: dict[int, NamespaceRow] = {}
        self.indexes: dict[int, dict[int, IndexRow]] = {}
        self.parents: dict[int, dict[int, InheritsRow]] = {}
        self.ranges: dict[int, RangeRow] = {}
        #: the table of each TOAST table
        self._owners: dict[int, int] = {}
        for part in (
            rows.classes, rows.attributes, rows.types, rows.labels, rows.namespaces, rows.indexes,
            rows.inherits, rows.ranges,
        ):  # fmt: skip
            for row in part:
                self._put(row)

    # ---- changes

    def apply(self, old: Row | None, new: Row | None) -> None:
        """A row is inserted, changed or deleted."""
        if old is not None and (new is None or old.key != new.key):
            self._remove(old)
        if new is not None:
            self._put(new)

    def _put(self, row: Row) -> None:
        match row:
            case ClassRow():
                self.classes[row.oid] = row
                if row.reltoastrelid:
                    self._owners[row.reltoastrelid] = row.oid
            case AttributeRow():
                if row.attnum > 0:
                    self.attributes.setdefault(row.attrelid, {})[row.attnum] = row
            case TypeRow():
                self.types[row.oid] = row
            case LabelRow():
                self.labels.setdefault(row.enumtypid, {})[row.oid] = row
            case NamespaceRow():
                self.namespaces[row.oid] = row
            case IndexRow():
                self.indexes.setdefault(row.indrelid, {})[row.indexrelid] = row
            case InheritsRow():
                self.parents.setdefault(row.inhrelid, {})[row.inhseqno] = row
            case RangeRow():
                self.ranges[row.rngtypid] = row

    def _remove(self, row: Row) -> None:
        match row:
            case ClassRow():
                self.classes.pop(row.oid, None)
            case AttributeRow():
                _pop(self.attributes, row.attrelid, row.attnum)
            case TypeRow():
                self.types.pop(row.oid, None)
            case LabelRow():
                _pop(self.labels, row.enumtypid, row.oid)
            case NamespaceRow():
                self.namespaces.pop(row.oid, None)
            case IndexRow():
                _pop(self.indexes, row.indrelid, row.indexrelid)
            case InheritsRow():
                _pop(self.parents, row.inhrelid, row.inhseqno)
            case RangeRow():
                self.ranges.pop(row.rngtypid, None)

    # ---- what a change is about

    def relations_of(self, row: Row) -> set[int]:
        """The relations whose definitions a change of this row may change, except by types."""
        match row:
            case ClassRow():
                found = {row.oid, self._owners.get(row.oid, row.oid)}
                known = self.classes.get(row.oid)
                if known is not None and known[1:3] != row[1:3]:  # a new name
                    found |= self._children_of(row.oid)
                return found
            case AttributeRow():
                return {row.attrelid}
            case IndexRow():
                return {row.indrelid}
            case InheritsRow():
                return {row.inhrelid}
            case NamespaceRow():
                known_name = self.namespaces.get(row.oid)
                if known_name is None or known_name == row:
                    return set()
                return {each.oid for each in self.classes.values() if each.relnamespace == row.oid}
            case _:
                return set()

    def types_of(self, row: Row) -> set[int]:
        """The types that a change of this row changes."""
        match row:
            case TypeRow():
                return {row.oid}
            case LabelRow():
                return {row.enumtypid}
            case RangeRow():
                return {row.rngtypid, row.rngmultitypid}
            case _:
                return set()

    def users_of(self, types: Iterable[int]) -> set[int]:
        """The relations with columns of these types, directly or through other types."""
        wanted = set(types)
        while True:
            more = {
                each.oid
                for each in self.types.values()
                if each.oid not in wanted and (each.typelem in wanted or each.typbasetype in wanted)
            }
            if not more:
                break
            wanted |= more
        return {
            relation
            for relation, columns in self.attributes.items()
            if any(each.atttypid in wanted for each in columns.values())
        }

    def _children_of(self, oid: int) -> set[int]:
        return {
            child
            for child, rows in self.parents.items()
            if any(row.inhparent == oid for row in rows.values())
        }

    def parents_of(self, oid: int) -> list[int]:
        rows = self.parents.get(oid, {})
        return [rows[number].inhparent for number in sorted(rows)
                if rows[number].inhparent in self.classes]  # fmt: skip

    # ---- tables and types

    def schema_of(self, row: ClassRow) -> str:
        found = self.namespaces.get(row.relnamespace)
        return found.nspname if found else str(row.relnamespace)

    def name_of(self, row: ClassRow) -> str:
        return f"{self.schema_of(row)}.{row.relname}"

    def is_shown(self, row: ClassRow) -> bool:
        """Whether its rows are shown: a permanent table of a user."""
        return (
            row.relkind in _TABLE_KINDS
            and row.relpersistence == "p"
            and row.oid >= FIRST_NORMAL_OID
            and self.schema_of(row) not in _SYSTEM_SCHEMAS
        )

    def table(self, oid: int) -> Table | None:
        """None if its rows are not shown. The new heap of a rewrite is shown as the table that is
        rewritten."""
        heap = self.classes.get(oid)
        row = heap if heap is None or not heap.relrewrite else self.classes.get(heap.relrewrite)
        if heap is None or row is None or not self.is_shown(heap) or row.relkind != heap.relkind:
            return None
        toast = self.classes.get(heap.reltoastrelid)
        attributes = self.attributes.get(oid, {})
        return Table(
            row.oid,
            heap.relfilenode,
            self.schema_of(row),
            row.relname,
            heap.reltoastrelid,
            toast.relfilenode if toast else 0,
            self._key_of(row.oid),
            tuple(self._column(attributes[attnum]) for attnum in sorted(attributes)),
        )

    def _key_of(self, oid: int) -> tuple[int, ...]:
        rows = self.indexes.get(oid, {}).values()
        chosen = [row for row in rows if row.indisprimary] or [
            row for row in rows if row.indisreplident
        ]
        if not chosen:
            return ()
        return tuple(number - 1 for number in chosen[0].indkey[: chosen[0].indnkeyatts])

    def _column(self, row: AttributeRow) -> Column:
        missing = row.missing or self._missing(row) or (None, None)
        return Column(
            row.attname, row.atttypid, row.atttypmod, row.attlen, _ALIGN[row.attalign],
            row.attbyval, row.attisdropped or row.attgenerated == _VIRTUAL, *missing,
        )  # fmt: skip

    def _missing(self, row: AttributeRow) -> tuple[str, str] | None:
        """The value of a column in older rows, as text and as JSON. None if it has none, or if the
        value cannot be decoded."""
        if row.attmissingval is None:
            return None
        types, wanted = {}, {row.atttypid}
        while wanted:
            oid = wanted.pop()
            if (found := self.type(oid)) is not None:
                types[oid] = found
                wanted |= {found.of_oid} - types.keys() - {0}
        reader = Datums(types).reader(row.atttypid)
        if reader is None:
            return None
        length, align = row.attlen, _ALIGN[row.attalign]
        try:
            text, shown = (
                array_json(row.attmissingval, Element(length, align, printer, printer))[1:-1]
                for printer in (reader.text, reader.json)
            )
        except (ValueError, IndexError, struct.error):
            return None
        return text, shown

    def doubt_of(self, oid: int) -> str | None:
        """Why rows of the relation may be shown wrongly."""
        for row in self.attributes.get(oid, {}).values():
            has_value = row.attmissingval is not None and not row.attisdropped
            if has_value and row.missing is None and self._missing(row) is None:
                return f"column {row.attname}: its value in older rows cannot be decoded"
        return None

    def type(self, oid: int) -> Type | None:
        row = self.types.get(oid)
        if row is None:
            return None
        element = self.types.get(row.typelem)
        is_array = row.typlen == -1 and element is not None and element.typarray == oid
        labels = self.labels.get(oid, {}).values()
        return Type(
            oid, row.typname, ARRAY if is_array else row.typtype,
            row.typelem if is_array else row.typbasetype, row.typlen, _ALIGN[row.typalign],
            row.typbyval, {label.oid: label.enumlabel for label in labels},
        )  # fmt: skip


def _pop(rows: dict[int, dict[int, _Part]], first: int, second: int) -> None:
    mine = rows.get(first, {})
    mine.pop(second, None)
    if not mine:
        rows.pop(first, None)
