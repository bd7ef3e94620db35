"""The rows of the system catalogs that describe tables, as far as the decoder needs them.

The fields have the names of the catalogs' columns. Two rows of a catalog with the same `key` are
the same object at different times. Source: Postgres `pg_class.h`, `pg_attribute.h`, `pg_type.h`,
`pg_enum.h`, `pg_namespace.h`, `pg_index.h`, `pg_inherits.h`, `pg_range.h`, `pg_depend.h`,
`pg_extension.h`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias


class ClassRow(NamedTuple):
    """`relrewrite`: of the new heap of a rewrite, the table that is rewritten; otherwise 0."""

    oid: int
    relname: str
    relnamespace: int
    relfilenode: int
    reltablespace: int
    reltoastrelid: int
    relkind: str
    relpersistence: str
    #: the number of columns, with dropped ones
    relnatts: int
    relrewrite: int

    @property
    def key(self) -> int:
        return self.oid

    @property
    def file(self) -> int:
        """A mapped catalog has 0 in the row; a new heap of its rewrite has a file of its oid."""
        return self.relfilenode or (self.oid if self.relrewrite else 0)


class AttributeRow(NamedTuple):
    """`attmissingval` is the stored array; `missing` is the value as text and as JSON, if the
    server has printed it."""

    attrelid: int
    attnum: int
    attname: str
    atttypid: int
    attlen: int
    atttypmod: int
    attalign: str
    attbyval: bool
    attnotnull: bool
    attgenerated: str
    attisdropped: bool
    attmissingval: bytes | None = None
    missing: tuple[str, str] | None = None

    @property
    def key(self) -> tuple[int, int]:
        return self.attrelid, self.attnum


class TypeRow(NamedTuple):
    oid: int
    typname: str
    typnamespace: int
    typlen: int
    typbyval: bool
    typtype: str
    typalign: str
    typrelid: int
    typelem: int
    typarray: int
    typbasetype: int

    @property
    def key(self) -> int:
        return self.oid


class LabelRow(NamedTuple):
    """`pg_enum`"""

    oid: int
    enumtypid: int
    enumsortorder: float
    enumlabel: str

    @property
    def key(self) -> int:
        return self.oid


class NamespaceRow(NamedTuple):
    oid: int
    nspname: str

    @property
    def key(self) -> int:
        return self.oid


class IndexRow(NamedTuple):
    """The key is the first `indnkeyatts` columns of `indkey`; the others are only stored."""

    indexrelid: int
    indrelid: int
    indnkeyatts: int
    indisprimary: bool
    indisreplident: bool
    indkey: tuple[int, ...]

    @property
    def key(self) -> int:
        return self.indexrelid


class InheritsRow(NamedTuple):
    """A partition and its partitioned table, or a child of a table."""

    inhrelid: int
    inhparent: int
    inhseqno: int

    @property
    def key(self) -> tuple[int, int]:
        return self.inhrelid, self.inhseqno


class RangeRow(NamedTuple):
    rngtypid: int
    rngsubtype: int
    #: Postgres 13 has none
    rngmultitypid: int = 0

    @property
    def key(self) -> int:
        return self.rngtypid


class DependRow(NamedTuple):
    """Only the membership of a type in an extension is used."""

    classid: int
    objid: int
    refclassid: int
    refobjid: int
    deptype: str

    @property
    def key(self) -> tuple[int, int, int, int]:
        return self.classid, self.objid, self.refclassid, self.refobjid

    @property
    def is_of_type(self) -> bool:
        return (self.classid, self.refclassid, self.deptype) == (PG_TYPE, PG_EXTENSION, "e")


class ExtensionRow(NamedTuple):
    oid: int
    extname: str

    @property
    def key(self) -> int:
        return self.oid


Row: TypeAlias = (
    ClassRow
    | AttributeRow
    | TypeRow
    | LabelRow
    | NamespaceRow
    | IndexRow
    | InheritsRow
    | RangeRow
    | DependRow
    | ExtensionRow
)

PG_TYPE, PG_ATTRIBUTE, PG_CLASS, PG_DEPEND, PG_INDEX = 1247, 1249, 1259, 2608, 2610
PG_INHERITS, PG_NAMESPACE, PG_EXTENSION, PG_ENUM, PG_RANGE = 2611, 2615, 3079, 3501, 3541

ROW_OF: Mapping[int, type[Row]] = {
    PG_TYPE: TypeRow,
    PG_ATTRIBUTE: AttributeRow,
    PG_CLASS: ClassRow,
    PG_INDEX: IndexRow,
    PG_INHERITS: InheritsRow,
    PG_NAMESPACE: NamespaceRow,
    PG_ENUM: LabelRow,
    PG_RANGE: RangeRow,
    PG_DEPEND: DependRow,
    PG_EXTENSION: ExtensionRow,
}
