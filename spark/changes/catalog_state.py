"""`CatalogState`: the rows of the system catalogs at one moment, and the tables that they describe.

    rows --apply(old, new)--> rows of the next moment            table(oid), type(oid)

Pure. Law: from the rows of one snapshot it makes the same tables and types as the queries of
`catalog_snapshot.py`. Applying a change twice has no further effect.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TypeVar

from quorum_wal.spark.changes.catalog import (
    ALIGN,
    ARRAY,
    COMPOSITE,
    MULTIRANGE,
    RANGE,
    Attribute,
    CatalogRows,
    Column,
    Table,
    Type,
)
from quorum_wal.spark.changes.catalog_rows import (
    AttributeRow,
    ClassRow,
    DependRow,
    ExtensionRow,
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
from quorum_wal.spark.changes.type_users import TypeUsers

FIRST_NORMAL_OID = 16384
_SYSTEM_SCHEMAS = frozenset({"pg_catalog", "information_schema", "pg_toast"})
_TABLE_KINDS = frozenset("rp")
_VIRTUAL = "v"

_Part = TypeVar("_Part")


class CatalogState:
    """Rows by their keys; those of a relation or a type together. `types` are those of the
    snapshot, which has the texts of money."""

    def __init__(self, rows: CatalogRows, types: Mapping[int, Type]) -> None:
        self.classes: dict[int, ClassRow] = {}
        self.attributes: dict[int, dict[int, AttributeRow]] = {}
        self.types: dict[int, TypeRow] = {}
        self.labels: dict[int, dict[int, LabelRow]] = {}
        self.namespaces: dict[int, NamespaceRow] = {}
        self.indexes: dict[int, dict[int, IndexRow]] = {}
        self.parents: dict[int, dict[int, InheritsRow]] = {}
        self.ranges: dict[int, RangeRow] = {}
        self.depends: dict[int, DependRow] = {}
        self.extensions: dict[int, ExtensionRow] = {}
        self.users = TypeUsers()
        self._samples = {oid: each.samples for oid, each in types.items() if each.samples}
        #: the table of each TOAST table
        self._owners: dict[int, int] = {}
        #: the range of each multirange
        self._range_of: dict[int, int] = {}
        for part in (
            rows.classes, rows.types, rows.attributes, rows.labels, rows.namespaces, rows.indexes,
            rows.inherits, rows.ranges, rows.depends, rows.extensions,
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
            case AttributeRow() if row.attnum > 0:
                mine = self.attributes.setdefault(row.attrelid, {})
                self.users.replace_column(mine.get(row.attnum), row)
                mine[row.attnum] = row
            case TypeRow():
                self.users.replace_type(self.types.get(row.oid), row)
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
                self._range_of[row.rngmultitypid] = row.rngtypid
                self.users.add_range(row)
            case DependRow() if row.is_of_type:
                self.depends[row.objid] = row
            case ExtensionRow():
                self.extensions[row.oid] = row
            case _:
                pass  # system columns, and other dependencies

    def _remove(self, row: Row) -> None:
        match row:
            case ClassRow():
                self.classes.pop(row.oid, None)
            case AttributeRow():
                mine = self.attributes.get(row.attrelid, {})
                self.users.replace_column(mine.get(row.attnum), None)
                _pop(self.attributes, row.attrelid, row.attnum)
            case TypeRow():
                self.users.replace_type(self.types.pop(row.oid, None), None)
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
            case DependRow() if row.is_of_type:
                self.depends.pop(row.objid, None)
            case ExtensionRow():
                self.extensions.pop(row.oid, None)
            case _:
                pass

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
            case AttributeRow():
                return self.users.row_type(row.attrelid)
            case DependRow() if row.is_of_type:
                return {row.objid}
            case _:
                return set()

    def _children_of(self, oid: int) -> set[int]:
        return {
            child
            for child, rows in self.parents.items()
            if any(row.inhparent == oid for row in rows.values())
        }

    def parents_of(self, oid: int) -> list[int]:
        rows = self.parents.get(oid, {})
        found = [rows[number].inhparent for number in sorted(rows)]
        return [parent for parent in found if parent in self.classes]

    # ---- tables

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

    def is_incomplete(self, oid: int) -> bool:
        """Whether rows of pg_attribute are missing of a table whose rows are to be shown."""
        row = self.classes.get(oid)
        numbers = sorted(self.attributes.get(oid, ()))
        return (
            row is not None and self.is_shown(row) and numbers != list(range(1, row.relnatts + 1))
        )

    def table(self, oid: int) -> Table | None:
        """None if its rows are not shown, or its columns are not known. The new heap of a rewrite
        is shown as the table that is rewritten."""
        heap = self.classes.get(oid)
        row = heap if heap is None or not heap.relrewrite else self.classes.get(heap.relrewrite)
        if heap is None or row is None or not self.is_shown(heap) or row.relkind != heap.relkind:
            return None
        toast = self.classes.get(heap.reltoastrelid)
        attributes = self.attributes.get(oid, {})
        if self.is_incomplete(oid):
            return None
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
        numbers = chosen[0].indkey[: chosen[0].indnkeyatts]
        known = self.attributes.get(oid, {})
        return tuple(number - 1 for number in numbers if number in known)

    def _column(self, row: AttributeRow) -> Column:
        missing = row.missing or self._missing(row) or (None, None)
        return Column(
            row.attname, row.atttypid, row.atttypmod, row.attlen, ALIGN[row.attalign],
            row.attbyval, row.attisdropped or row.attgenerated == _VIRTUAL, *missing,
        )  # fmt: skip

    def _missing(self, row: AttributeRow) -> tuple[str, str] | None:
        """The value of a column in older rows, as text and as JSON. None if it has none, or if the
        value cannot be decoded."""
        if row.attmissingval is None:
            return None
        reader = self._datums(row.atttypid).reader(row.atttypid)
        length, align = row.attlen, ALIGN[row.attalign]
        try:
            text, shown = (
                array_json(row.attmissingval, Element(length, align, printer, printer))[1:-1]
                for printer in (reader.number or reader.text, reader.json)
            )
        except (ValueError, IndexError, RecursionError, struct.error):
            return None
        return text, shown

    def doubt_of(self, oid: int) -> str | None:
        """Why rows of the relation may be shown wrongly."""
        for row in self.attributes.get(oid, {}).values():
            if row.attmissingval is None or row.missing is not None or row.attisdropped:
                continue
            if self._missing(row) is None:
                return f"column {row.attname}: its value in older rows cannot be decoded"
            if undecoded := self._datums(row.atttypid).reader(row.atttypid).undecoded:
                return f"column {row.attname}: stored bytes in older rows, because {undecoded}"
        return None

    # ---- types

    def type(self, oid: int) -> Type | None:
        row = self.types.get(oid)
        if row is None:
            return None
        element = self.types.get(row.typelem)
        is_array = row.typlen == -1 and element is not None and element.typarray == oid
        labels = self.labels.get(oid, {}).values()
        is_composite = row.typtype == COMPOSITE
        return Type(
            oid, row.typname, ARRAY if is_array else row.typtype,
            row.typelem if is_array else self._of_oid(row), row.typlen, ALIGN[row.typalign],
            row.typbyval, {label.oid: label.enumlabel for label in labels},
            row.typrelid if is_composite else 0,
            self._attributes(row.typrelid) if is_composite else (),
            self._extension(oid), self._samples.get(oid, ()),
        )  # fmt: skip

    def _of_oid(self, row: TypeRow) -> int:
        if row.typtype == RANGE and row.oid in self.ranges:
            return self.ranges[row.oid].rngsubtype
        if row.typtype == MULTIRANGE:
            return self._range_of.get(row.oid, 0)
        return row.typbasetype

    def _attributes(self, relation: int) -> tuple[Attribute, ...]:
        rows = self.attributes.get(relation, {})
        return tuple(
            Attribute(
                rows[attnum].attname, rows[attnum].atttypid, rows[attnum].attlen,
                ALIGN[rows[attnum].attalign], rows[attnum].attisdropped,
            )
            for attnum in sorted(rows)
        )  # fmt: skip

    def _extension(self, oid: int) -> str:
        depend = self.depends.get(oid)
        found = self.extensions.get(depend.refobjid) if depend else None
        return found.extname if found else ""

    def _datums(self, oid: int) -> Datums:
        """With a type and all types of which it consists."""
        types: dict[int, Type] = {}
        wanted: set[int] = {oid}
        while wanted:
            found = self.type(wanted.pop())
            if found is not None:
                types[found.oid] = found
                parts = (found.of_oid, *(each.type_oid for each in found.attributes))
                wanted |= {part for part in parts if part} - types.keys()
        return Datums(types)

    def users_of(self, types: Iterable[int]) -> set[int]:
        """The relations with columns of these types, directly or through other types."""
        return self.users.of(types)


def _pop(rows: dict[int, dict[int, _Part]], first: int, second: int) -> None:
    mine = rows.get(first, {})
    mine.pop(second, None)
    if not mine:
        rows.pop(first, None)
