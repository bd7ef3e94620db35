"""`TypeUsers`: which relations have columns of a type, directly or through other types.

enum --> array --> column of orders --> row type of orders --> column of baskets
"""

from __future__ import annotations

from collections.abc import Iterable

from quorum_wal.spark.changes.catalog_rows import AttributeRow, RangeRow, TypeRow


class TypeUsers:
    """Kept beside the rows of the catalogs."""

    def __init__(self) -> None:
        #: (relation, number of the column)
        self._columns: dict[int, set[tuple[int, int]]] = {}
        #: arrays, domains and ranges of a type
        self._derived: dict[int, set[int]] = {}
        self._row_types: dict[int, int] = {}

    def replace_column(self, old: AttributeRow | None, new: AttributeRow | None) -> None:
        if old is not None:
            self._columns.get(old.atttypid, set()).discard(old.key)
        if new is not None and not new.attisdropped:
            self._columns.setdefault(new.atttypid, set()).add(new.key)

    def replace_type(self, old: TypeRow | None, new: TypeRow | None) -> None:
        if old is not None:
            for part in (old.typelem, old.typbasetype):
                self._derived.get(part, set()).discard(old.oid)
            self._row_types.pop(old.typrelid, None)
        if new is not None:
            for part in (new.typelem, new.typbasetype):
                if part:
                    self._derived.setdefault(part, set()).add(new.oid)
            if new.typrelid:
                self._row_types[new.typrelid] = new.oid

    def add_range(self, row: RangeRow) -> None:
        self._derived.setdefault(row.rngsubtype, set()).add(row.rngtypid)
        self._derived.setdefault(row.rngtypid, set()).add(row.rngmultitypid)

    def row_type(self, relation: int) -> set[int]:
        """The composite type of a relation's rows, if it has one."""
        found = self._row_types.get(relation)
        return set() if found is None else {found}

    def of(self, types: Iterable[int]) -> set[int]:
        """The relations with columns of these types."""
        seen: set[int] = set()
        found: set[int] = set()
        wanted = set(types)
        while wanted:
            oid = wanted.pop()
            seen.add(oid)
            relations = {relation for relation, _ in self._columns.get(oid, ())}
            rows = {row for relation in relations for row in self.row_type(relation)}
            found |= relations
            wanted |= (self._derived.get(oid, set()) | rows) - seen
        return found
