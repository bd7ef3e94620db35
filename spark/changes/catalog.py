"""`Catalog`: the tables of files, and the format of their tuples; stored as JSON in a file.

    {"format": 1, "system_id": "7301…", "version_major": 16, "database": [16384, "shop"],
     "lsn": "0/1A2B3C4", "wal_level": "logical",
     "tables": [{"oid": 16401, "relfilenode": 16401, "schema": "public", "name": "orders",
                 "toast_oid": 16405, "toast_relfilenode": 16405, "key": [0],
                 "columns": [{"name": "id", "type": 23, "length": 4, "align": 4, …}, …]}, …],
     "types": [{"oid": 23, "name": "int4", "kind": "b", …}, …],
     "ignored": {"1259": "pg_catalog.pg_class", …}}

Law: the catalog is valid at `lsn`. For a file that still belongs to its table it is also valid
before: a column keeps its number, a dropped column keeps its length and alignment, and a type that
is changed without a new file can read the old values. After `lsn` the changes of the system
catalogs are followed in the WAL from `rows` on (`catalog_follower.py`). Files of older versions
have no `rows`; they are valid until the table is altered (`alterations.py`). Source: Postgres
`pg_class`, `pg_attribute`, `pg_type`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import msgspec

from quorum_wal.pgwal.errors import LsnSyntaxError
from quorum_wal.pgwal.lsn import Lsn
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
    TypeRow,
)
from quorum_wal.spark.errors import CatalogError

FORMAT = 1

#: `pg_attribute.attalign` and `pg_type.typalign`
ALIGN = {"c": 1, "s": 2, "i": 4, "d": 8}

#: `pg_type.typtype`
DOMAIN, ENUM, ARRAY, COMPOSITE, RANGE, MULTIRANGE = "d", "e", "a", "c", "r", "m"


@dataclass(frozen=True, slots=True)
class Attribute:
    """`pg_attribute` of a composite type, also of a dropped attribute."""

    name: str
    type_oid: int
    length: int
    align: int
    is_dropped: bool


@dataclass(frozen=True, slots=True)
class Type:
    """A type. Arrays have kind "a" here; Postgres has `typelem` and `typsubscript` instead."""

    oid: int
    name: str
    kind: str
    #: of an array: its element type; of a domain: its base type; of a range: its subtype; of a
    #: multirange: its range; otherwise 0
    of_oid: int
    length: int
    align: int
    by_value: bool
    #: of an enum: oid -> label
    labels: dict[int, str]
    #: of a composite type: its relation, and its attributes
    relation_oid: int = 0
    attributes: tuple[Attribute, ...] = ()
    #: the extension that has the type, or ""
    extension: str = ""
    #: of money: texts that show the format of `lc_monetary` (`datum_money.py`)
    samples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Column:
    """`pg_attribute`, also of a dropped column; `length` is -1 for varlena, -2 for a C string."""

    name: str
    type_oid: int
    typmod: int
    length: int
    align: int
    by_value: bool
    #: or virtual: rows have no value for it, but the column has a number
    is_dropped: bool
    #: the value in tuples older than the column, as text and as JSON; None means NULL
    missing: str | None
    missing_json: str | None


@dataclass(frozen=True, slots=True)
class Table:
    """A table with one file. Columns are identified by attnum - 1."""

    oid: int
    relfilenode: int
    schema: str
    name: str
    toast_oid: int
    toast_relfilenode: int
    #: the columns of the primary key in its order; without one, of the replica identity index
    key: tuple[int, ...]
    columns: tuple[Column, ...]

    @property
    def live_columns(self) -> tuple[int, ...]:
        """The columns that are not dropped."""
        return tuple(i for i, column in enumerate(self.columns) if not column.is_dropped)

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True, slots=True)
class CatalogLayout:
    """The files that belong to a system catalog, and its columns."""

    files: tuple[int, ...]
    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class CatalogRows:
    """The rows of the system catalogs that one snapshot saw, and where to follow their changes."""

    #: the redo LSN of a checkpoint: every page that changes after it has an image in the WAL
    redo_lsn: int
    #: commits from here on were not seen
    after_lsn: int
    #: transactions from `xmax` on were not seen, nor the `running` ones; None: exactly the commits
    #: before the catalog's LSN were seen, as on a standby
    xmax: int | None
    running: tuple[int, ...]
    #: the transactions that may have changed catalogs before the catalog's LSN without being seen
    open: tuple[int, ...]
    #: by the oid of the catalog
    layouts: dict[int, CatalogLayout]
    classes: tuple[ClassRow, ...]
    attributes: tuple[AttributeRow, ...]
    types: tuple[TypeRow, ...]
    labels: tuple[LabelRow, ...]
    namespaces: tuple[NamespaceRow, ...]
    indexes: tuple[IndexRow, ...]
    inherits: tuple[InheritsRow, ...]
    ranges: tuple[RangeRow, ...]
    depends: tuple[DependRow, ...]
    extensions: tuple[ExtensionRow, ...]


class Catalog:
    """One database's tables at an LSN, and tables of older catalogs whose files were deleted."""

    def __init__(
        self,
        *,
        system_id: int,
        version_major: int,
        database_oid: int,
        database_name: str,
        lsn: int,
        wal_level: str,
        tables: Iterable[Table],
        types: Iterable[Type],
        ignored: Mapping[int, str],
        older_files: Mapping[int, int] | None = None,
        rows: CatalogRows | None = None,
        parts: Iterable[Catalog] = (),
    ) -> None:
        self.system_id = system_id
        self.version_major = version_major
        self.database_oid = database_oid
        self.database_name = database_name
        self.lsn = lsn
        self.wal_level = wal_level
        self.tables: tuple[Table, ...] = tuple(tables)
        self.types: Mapping[int, Type] = {each.oid: each for each in types}
        #: files without rows to decode, and their names: system catalogs, indexes, sequences
        self.ignored = dict(ignored)
        #: files of tables that only an older catalog has, and the LSN of that catalog
        self.older_files = dict(older_files or {})
        #: None: the changes after `lsn` cannot be followed
        self.rows = rows
        #: the catalogs that were merged into this one, the oldest first
        self.parts: tuple[Catalog, ...] = tuple(parts) or (self,)

    @cached_property
    def by_file(self) -> dict[int, Table]:
        """Partitioned tables have no file."""
        return {table.relfilenode: table for table in self.tables if table.relfilenode}

    @cached_property
    def by_toast_file(self) -> dict[int, Table]:
        return {each.toast_relfilenode: each for each in self.tables if each.toast_relfilenode}

    @cached_property
    def by_oid(self) -> dict[int, Table]:
        """The newest version of each table: the last one with an oid wins."""
        return {table.oid: table for table in self.tables}

    def file_names(self) -> dict[int, str]:
        """The name of each file."""
        toast = {file: f"{table} (TOAST)" for file, table in self.by_toast_file.items()}
        tables = {file: str(table) for file, table in self.by_file.items()}
        return {**self.ignored, **toast, **tables}

    def taken_lsn(self, table: Table) -> int:
        """The LSN after which the catalog may be wrong about the table."""
        return self.older_files.get(table.relfilenode, self.lsn)

    def type_oids(self, table: Table) -> frozenset[int]:
        """What an ALTER TYPE may alter of its columns' types, and of the types of which those
        consist: enums, and the relations of composite types."""
        oids = {column.type_oid for column in table.columns if not column.is_dropped}
        seen: set[int] = set()
        found = set()
        while oids:
            types = [self.types[oid] for oid in oids if oid in self.types]
            found |= {each.oid for each in types if each.kind == ENUM}
            found |= {each.relation_oid for each in types if each.relation_oid}
            seen |= oids
            oids = {each.of_oid for each in types}
            oids |= {part.type_oid for each in types for part in each.attributes}
            oids -= seen
        return frozenset(found)

    def taken_lsns(self) -> list[int]:
        """The LSNs of all catalogs that were merged into this one."""
        return sorted({self.lsn, *self.older_files.values()})

    def lookup(self, database: int, relfilenode: int) -> Table | None:
        """The table that owns the file or its TOAST file."""
        if database != self.database_oid:
            return None
        return self.by_file.get(relfilenode) or self.by_toast_file.get(relfilenode)

    def table_named(self, name: str) -> Table:
        """`"public.orders"`, or `"orders"` if no other schema has one. Raises CatalogError."""
        newest = self.by_oid.values()
        found = [table for table in newest if name in (str(table), table.name)]
        exact = [table for table in found if str(table) == name]
        if len(exact or found) != 1:
            what = "no table" if not found else "more than one table"
            raise CatalogError(
                f'the catalog of database "{self.database_name}" has {what} "{name}"',
                hint="Name it with its schema. If it is newer than the catalog, take a new one.",
            )
        return (exact or found)[0]

    def merged(self, newer: Catalog) -> Catalog:
        """`newer`, with the files that only this catalog has. Raises CatalogError."""
        ours, theirs = (
            (each.system_id, each.version_major, each.database_oid) for each in (self, newer)
        )
        if ours != theirs:
            raise CatalogError(
                f"catalogs of different databases: system identifier {ours[0]}, Postgres "
                f"{ours[1]}, database {ours[2]}, and {theirs[0]}, {theirs[1]}, {theirs[2]}"
            )
        gone = [table for file, table in self.by_file.items() if file not in newer.by_file]
        types = {**self.types, **newer.types}
        return Catalog(
            system_id=newer.system_id,
            version_major=newer.version_major,
            database_oid=newer.database_oid,
            database_name=newer.database_name,
            lsn=newer.lsn,
            wal_level=newer.wal_level,
            tables=(*gone, *newer.tables),
            types=types.values(),
            ignored={**self.ignored, **newer.ignored},
            older_files={
                **{table.relfilenode: self.taken_lsn(table) for table in gone},
                **newer.older_files,
            },
            rows=newer.rows,
            parts=sorted((*self.parts, *newer.parts), key=lambda part: part.lsn),
        )

    def with_tables(
        self, tables: Iterable[Table], types: Iterable[Type], ignored: Mapping[int, str]
    ) -> Catalog:
        """A copy with other tables and types."""
        return Catalog(
            system_id=self.system_id,
            version_major=self.version_major,
            database_oid=self.database_oid,
            database_name=self.database_name,
            lsn=self.lsn,
            wal_level=self.wal_level,
            tables=tables,
            types=types,
            ignored=ignored,
            older_files=self.older_files,
        )

    def followed(self, lsn: int) -> Catalog | None:
        """The catalog from which the changes at `lsn` and after it are followed: the last one that
        was taken before, or else the first one. None if no catalog has rows."""
        able = [part for part in self.parts if part.rows is not None]
        before = [part for part in able if part.lsn <= lsn]
        return before[-1] if before else able[0] if able else None

    # ---- the file

    def to_json(self) -> bytes:
        stored = _Stored(
            format=FORMAT,
            system_id=str(self.system_id),
            version_major=self.version_major,
            database=(self.database_oid, self.database_name),
            lsn=str(Lsn(self.lsn)),
            wal_level=self.wal_level,
            tables=self.tables,
            types=tuple(self.types.values()),
            ignored=dict(sorted(self.ignored.items())),
            rows=self.rows,
        )
        return msgspec.json.format(msgspec.json.encode(stored), indent=1) + b"\n"

    @classmethod
    def from_json(cls, text: bytes, name: str) -> Catalog:
        """Raises CatalogError, whose message has `name`."""
        hint = "Take a new one with sk catalog snapshot."
        try:
            head = msgspec.json.decode(text, type=_Head)
            if head.format != FORMAT:
                raise CatalogError(
                    f"catalog {name} has format {head.format}, expected {FORMAT}", hint=hint
                )
            stored = msgspec.json.decode(text, type=_Stored)
            system_id, lsn = int(stored.system_id), int(Lsn.parse(stored.lsn))
        except (msgspec.MsgspecError, ValueError, LsnSyntaxError) as error:
            raise CatalogError(f"catalog {name} cannot be read: {error}", hint=hint) from error
        return cls(
            system_id=system_id,
            version_major=stored.version_major,
            database_oid=stored.database[0],
            database_name=stored.database[1],
            lsn=lsn,
            wal_level=stored.wal_level,
            tables=stored.tables,
            types=stored.types,
            ignored=stored.ignored,
            rows=stored.rows,
        )


class _Head(msgspec.Struct):
    format: int


class _Stored(_Head):
    system_id: str
    version_major: int
    database: tuple[int, str]
    lsn: str
    wal_level: str
    tables: tuple[Table, ...]
    types: tuple[Type, ...]
    ignored: dict[int, str]
    rows: CatalogRows | None = None


def load_catalog(paths: str) -> Catalog:
    """A catalog from a file, or from comma-separated files; a newer one overrides an older one.

    Raises CatalogError.
    """
    catalogs = []
    for path in filter(None, (path.strip() for path in paths.split(","))):
        try:
            catalogs.append(Catalog.from_json(Path(path).read_bytes(), path))
        except OSError as error:
            raise CatalogError(
                f"catalog {path} cannot be read: {error.strerror}",
                hint="sk catalog snapshot creates one.",
            ) from error
    if not catalogs:
        raise CatalogError("no catalog is named", hint="sk catalog snapshot creates one.")
    merged, *newer = sorted(catalogs, key=lambda catalog: catalog.lsn)
    for catalog in newer:
        merged = merged.merged(catalog)
    return merged
